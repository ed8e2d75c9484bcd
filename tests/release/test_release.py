"""What may leave: exactly the listed tensors, a card without private facts, a page that needs nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sfumato.methods import DPMERF
from sfumato.privacy import Budget
from sfumato.release import DamagedRelease, Release
from sfumato.release.card import rounded_up
from worst_case import worst_case_images

BUDGET = Budget(3.0, 1e-5)


@pytest.fixture(scope="module")
def release() -> Release:
    return DPMERF.small().fit(worst_case_images(), BUDGET)


@pytest.mark.parametrize(
    ("value", "expected"), [(0.9991, 1.0), (1.0, 1.0), (9.98001, 9.99), (9.98, 9.98), (0.0, 0.0), (12.31, 12.4)]
)
def test_a_printed_epsilon_is_never_smaller(value: float, expected: float) -> None:
    assert rounded_up(value) == pytest.approx(expected)
    assert rounded_up(value) >= value * (1 - 1e-12)


def test_only_listed_tensors_leave(release: Release) -> None:
    class Smuggler(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = release.method.build(release.shape, 4)
            self.register_buffer("diary", torch.zeros(3))

    with pytest.raises(ValueError, match="does not list"):
        Release(release.method, Smuggler(), release.card)


def test_a_release_is_never_written_over_another(release: Release, tmp_path: Path) -> None:
    release.save(tmp_path / "r")
    with pytest.raises(FileExistsError, match="not empty"):
        release.save(tmp_path / "r")
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_a_damaged_release_is_refused(release: Release, tmp_path: Path) -> None:
    folder = release.save(tmp_path / "r")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "extra": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(DamagedRelease, match="extra"):
        Release.load(folder)
    (folder / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DamagedRelease):
        Release.load(folder)
    (folder / "card.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"card\.json"):
        Release.load(folder)


def test_samples_by_label_and_by_proportion(release: Release) -> None:
    assert set(release.sample(12)[1]) == {0, 1, 2, 3}
    assert set(release.sample(3, labels=np.array([2, 2, 2]))[1]) == {2}
    _, labels = release.sample(400, proportions=True, seed=0)
    shares = np.maximum(release.card["class_counts"], 0)
    assert np.bincount(labels, minlength=4) / 400 == pytest.approx(shares / shares.sum(), abs=0.15)
    for bad in ({"count": 0}, {"count": 2, "labels": np.array([0])}, {"count": 1, "labels": np.array([4])}):
        with pytest.raises(ValueError):
            release.sample(**bad)


def test_the_page_stands_alone_and_says_what_is_promised(release: Release, tmp_path: Path) -> None:
    page = (release.save(tmp_path / "r") / "card.html").read_text()
    assert "<script" not in page and not re.search(r"(src|href)=[\"']?(?!data:)\w+:", page)
    assert f"ε = {release.card['epsilon']:g}" in page and "1e-05" in page
    for heading in ("What is treated as public", "What is not covered", "How it was audited"):
        assert heading in page


def test_a_card_escapes_what_it_is_given(tmp_path: Path) -> None:
    private = worst_case_images()
    private.classes = ("<script>alert(1)</script>", "b", "c", "d")
    page = (DPMERF.small().fit(private, BUDGET).save(tmp_path / "r") / "card.html").read_text()
    assert "<script>" not in page


def test_no_private_number_is_on_the_card(release: Release) -> None:
    """The true counts are 22, 21, 16 and 1 of 60 records; the card has noisy ones, and no length or path."""
    text = json.dumps({key: value for key, value in release.card.items() if key != "versions"})
    assert "worst_case" not in text and "/" not in release.card["public"][0]
    assert release.card["class_counts"] != [22.0, 21.0, 16.0, 1.0]
    assert not re.search(r"\b60\b", text.replace(json.dumps(release.card["class_counts"]), ""))

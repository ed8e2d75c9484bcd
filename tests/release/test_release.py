"""What may leave: exactly the listed tensors, a card without private facts, a page that needs nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sfumato.methods import DPMERF
from sfumato.methods.registry import load
from sfumato.privacy import Budget, Counts, Curator
from sfumato.release import DamagedRelease, Release
from sfumato.release.card import rounded_up
from worst_case import worst_case_images

BUDGET = Budget(3.0, 1e-5)


@pytest.fixture(scope="module")
def release() -> Release:
    return DPMERF.small().fit(worst_case_images(), BUDGET)


def test_a_printed_epsilon_is_never_smaller() -> None:
    for value, expected in [(0.9991, 1.0), (1.0, 1.0), (9.98001, 9.99), (9.98, 9.98), (0.0, 0.0), (12.31, 12.4)]:
        assert rounded_up(value) == pytest.approx(expected)
        assert rounded_up(value) >= value * (1 - 1e-12)


def test_only_listed_tensors_leave(release: Release) -> None:
    class Smuggler(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = release.method.build(release.shape, 4)
            self.register_buffer("diary", torch.zeros(3))

    with pytest.raises(ValueError, match="does not list"):
        Release(release.method, Smuggler().state_dict(), release.card)


@dataclass(frozen=True)
class Hoarder(DPMERF):
    """Keeps the private images on itself and returns them as samples when it still has them."""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        found = super().fit_networks(curator)
        object.__setattr__(self, "diary", torch.tensor(np.asarray(curator._records._pixels), dtype=torch.float32))
        found[0].diary = self.diary  # type: ignore[attr-defined]
        return found

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        for holder in (self, model):
            if hasattr(holder, "diary"):
                return holder.diary[: len(labels)]  # type: ignore[no-any-return]
        return super().generate(model, labels)


def test_what_a_method_keeps_on_itself_does_not_leave_with_the_release(tmp_path: Path) -> None:
    """Images that were kept on the method or its network would be handed out as samples, under a certificate."""
    method = Hoarder.small()
    private = worst_case_images()
    release = method.fit(private, BUDGET)
    assert hasattr(method, "diary")
    assert release.method is not method and not hasattr(release.method, "diary")
    assert not hasattr(release.model, "diary")
    kept = (method.diary[:10].clamp(0, 1) * 255).round().to(torch.uint8).numpy()  # type: ignore[attr-defined]
    assert not (release.sample(10, seed=0).images == kept).all(axis=(1, 2, 3)).any()


def test_other_sampling_parameters_are_on_the_card(release: Release) -> None:
    changed = release.with_parameters({"iterations": 7})
    assert changed.card.parameters["iterations"] == 7 != release.card.parameters["iterations"]
    with pytest.raises(ValueError, match=r"shape|does not list"):
        release.with_parameters({"width": 3})


def test_a_release_is_never_written_over_another(release: Release, tmp_path: Path) -> None:
    release.save(tmp_path / "r")
    with pytest.raises(FileExistsError, match="not empty"):
        release.save(tmp_path / "r")
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_a_damaged_release_is_refused(release: Release, tmp_path: Path) -> None:
    unbound = Release(release.method, release.model.state_dict(), replace(release.card, weights=""))  # as 0.2.0 has it
    for one, told in ((unbound, "extra"), (release, "not the file that the card names")):
        folder = one.save(tmp_path / told)
        tensors = load_file(folder / "model.safetensors")
        save_file({**tensors, "extra": torch.zeros(1)}, folder / "model.safetensors")
        with pytest.raises(DamagedRelease, match=told):
            load(folder)
    (folder / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DamagedRelease):
        load(folder)
    (folder / "card.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"card\.json"):
        load(folder)


def test_samples_by_label_and_by_proportion(release: Release) -> None:
    assert set(release.sample(12).labels) == {0, 1, 2, 3}
    assert set(release.sample(3, labels=np.array([2, 2, 2])).labels) == {2}
    _, labels = release.sample(400, proportions=True, seed=0)
    shares = np.maximum(release.card.class_counts, 0)
    assert np.bincount(labels, minlength=4) / 400 == pytest.approx(shares / shares.sum(), abs=0.15)
    for bad in ({"count": 0}, {"count": 2, "labels": np.array([0])}, {"count": 1, "labels": np.array([4])}):
        with pytest.raises(ValueError):
            release.sample(**bad)


def test_the_page_stands_alone_and_says_what_is_promised(release: Release, tmp_path: Path) -> None:
    page = (release.save(tmp_path / "r") / "card.html").read_text()
    assert "<script" not in page and not re.search(r"(src|href)=[\"']?(?!data:)\w+:", page)
    assert f"ε = {release.card.epsilon:g}" in page and "1e-05" in page
    for heading in ("What is treated as public", "What is not covered", "How it was audited"):
        assert heading in page


def test_a_card_escapes_what_it_is_given(tmp_path: Path) -> None:
    private = worst_case_images()
    private.classes = ("<script>alert(1)</script>", "b", "c", "d")
    page = (DPMERF.small().fit(private, BUDGET).save(tmp_path / "r") / "card.html").read_text()
    assert "<script>" not in page


def test_no_private_number_is_on_the_card(release: Release) -> None:
    """The true counts are 22, 21, 16 and 1 of 60 records; the card has noisy ones, and no length or path."""
    text = json.dumps({key: value for key, value in release.card.to_json().items() if key != "versions"})
    assert "worst_case" not in text and "/" not in release.card.public[0]
    assert release.card.class_counts != (22.0, 21.0, 16.0, 1.0)
    assert not re.search(r"\b60\b", text.replace(json.dumps(release.card.class_counts), ""))

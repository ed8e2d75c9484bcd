"""A whole evaluation: complete records, baselines in order, selection blind to real data, no NaN on collapse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from release.cards import certified
from sfumato.data.images import Images
from sfumato.evaluation.classifiers import LOGISTIC_REGRESSION, ClassifierSpec, mlp
from sfumato.evaluation.evaluate import evaluate
from sfumato.evaluation.protocols import PROTOCOLS, Protocol, protocol_named
from sfumato.evaluation.results import (
    HALVES,
    NOISE,
    REAL,
    SYNTHETIC,
    EvaluationResult,
    ImageSet,
    Measurement,
)
from sfumato.release import SyntheticImages

CLASSES = ("a", "b", "c")

KEYS = """
row metric classifier mean std std_over values per_class worst_class protocol data candidate reference features
seeds settings guarantee private
"""

QUICK = replace(
    PROTOCOLS["sinkhorn"],
    classifiers=(LOGISTIC_REGRESSION, ClassifierSpec("CNN", mlp, epochs=6, batch=16, held_out=0.25)),
)


def blocks(count: int, *, seed: int, noise: int = 150) -> Images:
    """A class is the third of the picture that is brighter; the noise makes it a task."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    pixels = random.integers(0, noise, size=(count, 1, 12, 12), dtype=np.uint8)
    for row, label in enumerate(labels):
        pixels[row, 0, :, 4 * label : 4 * label + 4] += 60
    return Images(pixels, labels.astype(np.int64), CLASSES)


def carded(images: Images) -> SyntheticImages:
    """As a release with ε 1 would have drawn them."""
    card = certified(shape=images.pixels.shape[1:], classes=images.classes)
    return SyntheticImages(images.pixels, images.labels, card)


def find(result: EvaluationResult, row: str, metric: str, classifier: str | None = None) -> Measurement:
    (entry,) = [
        entry
        for entry in result.measurements
        if (entry.row, entry.metric) == (row, metric) and classifier in (None, entry.classifier)
    ]
    return entry


def evaluated() -> EvaluationResult:
    return evaluate(
        carded(blocks(60, seed=1)),
        blocks(90, seed=2),
        blocks(60, seed=3),
        protocol=QUICK,
        seeds=(4, 5),
        with_inception=False,
    )


@pytest.fixture(scope="module")
def result() -> EvaluationResult:
    return evaluated()


def test_every_value_carries_its_circumstances(result: EvaluationResult) -> None:
    content = result.to_json()
    assert content["notice"].startswith("NOT PRIVATE")
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert EvaluationResult.from_json(content) == result
    for entry in content["measurements"]:
        assert list(entry) == KEYS.split()
        assert entry["protocol"] == "sinkhorn"
        assert entry["guarantee"] == {"guarantee": "certified", "epsilon": 1.0, "delta": 1e-5, "unit": "image"}
        assert entry["private"] is False
        for side in ("candidate", "reference"):
            assert entry[side]["data"] and entry[side]["count"] > 0
        if entry["metric"] == "accuracy":
            assert entry["seeds"] == ([4] if entry["classifier"] == "LR" else [4, 5])
            assert len(entry["values"]) == len(entry["seeds"])
            assert [part["class"] for part in entry["per_class"]] == list(CLASSES)
            assert entry["worst_class"]["mean"] == min(part["mean"] for part in entry["per_class"])
        elif entry["metric"] != "label_agreement":
            assert entry["features"]["hash"].startswith("sha256:")
            assert "this run only" in entry["features"]["trained_on"]


def test_baselines_frame_the_synthetic_row(result: EvaluationResult) -> None:
    assert {entry.row for entry in result.measurements} == {SYNTHETIC, REAL, HALVES, NOISE}
    for name in ("LR", "CNN"):
        assert find(result, NOISE, "accuracy", name).mean < 0.6 < find(result, SYNTHETIC, "accuracy", name).mean
    assert find(result, SYNTHETIC, "accuracy", "LR").reference == ImageSet("real", "test", 60)
    assert find(result, HALVES, "accuracy", "LR").candidate.count == 45
    distances = {row: find(result, row, "frechet_distance").mean for row in (SYNTHETIC, REAL, HALVES, NOISE)}
    assert max(distances[SYNTHETIC], distances[REAL], distances[HALVES]) < distances[NOISE]
    assert find(result, SYNTHETIC, "label_agreement").mean > 0.6


def test_evaluation_is_repeatable(result: EvaluationResult) -> None:
    again = evaluated()
    assert again == result


def test_selection_never_sees_real_data(result: EvaluationResult) -> None:
    """Other real images, even with wrong labels, leave the chosen epochs of the synthetic row where they were."""
    misleading = blocks(60, seed=8)
    misleading = Images(misleading.pixels, (misleading.labels + 1) % 3, CLASSES)
    real = blocks(60, seed=9)
    other = evaluate(blocks(60, seed=1), real, misleading, protocol=QUICK, seeds=(4, 5), with_inception=False)
    before, after = (find(found, SYNTHETIC, "accuracy", "CNN") for found in (result, other))
    assert before.settings["selected_epochs"] == after.settings["selected_epochs"]
    assert before.mean != after.mean


@pytest.mark.long
def test_inception_numbers_are_finite_on_collapsed_samples_and_cached(tmp_path: Path) -> None:
    one = blocks(1, seed=0)
    collapsed = Images(np.repeat(one.pixels, 30, axis=0), np.repeat(one.labels, 30), CLASSES)
    lean = replace(QUICK, classifiers=(LOGISTIC_REGRESSION,), agreement_classifier="LR")
    found = evaluate(
        collapsed,
        blocks(60, seed=4),
        blocks(45, seed=5),
        protocol=lean,
        seeds=(0,),
        feature_images=7,
        cache=tmp_path,
    )
    json.dumps(found.to_json(), allow_nan=False)
    entry = find(found, SYNTHETIC, "fid")
    assert entry.features.hash == "sha1:a16e4d89c0ecbc17a915dd76ea9e41211aa82562"
    assert (entry.candidate.count, entry.reference) == (7, ImageSet("real", "test", 7))
    assert find(found, SYNTHETIC, "accuracy").mean == pytest.approx(1 / 3)
    assert find(found, SYNTHETIC, "fid").mean > find(found, HALVES, "fid").mean
    # Reference, first half (also the training subsample), second half and noise; the synthetic set is not kept.
    assert len(list(tmp_path.iterdir())) == 4


def test_classes_are_matched_by_name_and_unknown_ones_are_refused() -> None:
    real, test = blocks(60, seed=4), blocks(45, seed=5)
    renamed = Images(test.pixels, 2 - test.labels, ("c", "b", "a"))
    lean = replace(QUICK, classifiers=(LOGISTIC_REGRESSION,), agreement_classifier="LR")
    plain, turned = (
        evaluate(synthetic, real, test, protocol=lean, seeds=(0,), with_inception=False)
        for synthetic in (test, renamed)
    )
    assert find(plain, SYNTHETIC, "accuracy") == find(turned, SYNTHETIC, "accuracy")
    with pytest.raises(ValueError, match=r"\['z'\]"):
        evaluate(Images(test.pixels, test.labels, ("a", "b", "z")), real, test, with_inception=False)
    with pytest.raises(ValueError, match="same size and colour"):
        evaluate(Images(test.pixels[:, :, :8], test.labels, CLASSES), real, test, with_inception=False)


def test_protocols_keep_their_own_references_and_classifiers() -> None:
    assert {name: protocol.reference for name, protocol in PROTOCOLS.items()} == {
        "sinkhorn": "test",
        "dppm": "train",
        "dpdm": "train",
    }
    assert all(spec.held_out for spec in PROTOCOLS["dpdm"].classifiers)
    assert isinstance(protocol_named("dppm"), Protocol)
    with pytest.raises(ValueError, match="sinkhorn, dppm, dpdm"):
        protocol_named("fid")


def test_test_images_that_were_trained_on_are_refused() -> None:
    real = blocks(60, seed=4)
    with pytest.raises(ValueError, match="repeat the training images") as refused:
        evaluate(blocks(36, seed=1), real, real, protocol=QUICK, with_inception=False)
    assert "60" not in str(refused.value), "the number of copies is private"


def test_one_row_alone_is_the_row_of_the_whole_evaluation() -> None:
    def measured(only: str | None) -> EvaluationResult:
        return evaluate(
            blocks(36, seed=1),
            blocks(60, seed=4),
            blocks(45, seed=5),
            protocol=QUICK,
            seeds=(0,),
            with_inception=False,
            only=only,
        )

    whole, alone = measured(None), measured(REAL)
    assert {one.row for one in alone.measurements} == {REAL}
    assert list(alone.measurements) == [one for one in whole.measurements if one.row == REAL]
    assert "label_agreement" in {one.metric for one in alone.left_out}

"""Classifiers learn what is there, are repeatable, and choose an epoch without the set they are scored on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato.evaluation.classifiers import (
    CNN,
    LOGISTIC_REGRESSION,
    MLP,
    ClassifierSpec,
    HalfDropout,
    NetworkTraining,
    OptimizerSpec,
    mlp,
    score,
    train_classifier,
)
from sfumato.evaluation.protocols import PROTOCOLS


def bars(count: int, *, classes: int = 4, seed: int = 0, size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """A bright bar at a height that tells the class, in noise."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    pixels = random.integers(0, 120, size=(count, 1, size, size), dtype=np.uint8)
    for row, label in enumerate(labels):
        pixels[row, 0, label * size // classes : (label + 1) * size // classes] += 90
    return pixels, labels.astype(np.int64)


@pytest.mark.parametrize("spec", [LOGISTIC_REGRESSION, MLP, CNN], ids=lambda spec: spec.name)
def test_a_clear_pattern_is_learnt_and_shuffled_labels_are_not(spec: ClassifierSpec) -> None:
    pixels, labels = bars(256)
    small = replace(spec, batch=32)
    test_pixels, test_labels = bars(100, seed=1)
    found = score(train_classifier(small, pixels, labels, classes=4, seed=0), test_pixels, test_labels, classes=4)
    assert found.overall > 0.9
    shuffled = np.random.default_rng(3).permutation(labels)
    nothing = score(train_classifier(small, pixels, shuffled, classes=4, seed=0), test_pixels, test_labels, classes=4)
    assert nothing.overall < 0.6


@pytest.mark.parametrize(
    "shape",
    [(1, 28, 28), pytest.param((3, 32, 32), marks=pytest.mark.long), pytest.param((3, 64, 64), marks=pytest.mark.long)],
)
def test_every_network_of_every_protocol_takes_the_sizes_at_hand(shape: tuple[int, int, int]) -> None:
    for protocol in PROTOCOLS.values():
        for spec in protocol.classifiers:
            if spec.network is not None:
                assert spec.network(shape, 7).eval()(torch.zeros(2, *shape)).shape == (2, 7)


def test_the_sinkhorn_cnn_has_the_published_layers() -> None:
    network = CNN.network
    assert network is not None
    counts = [parameter.numel() for parameter in network((1, 28, 28), 10).parameters()]
    assert counts == [32 * 9, 32, 64 * 32 * 9, 64, 64 * 7 * 7 * 10, 10]
    assert (CNN.epochs, MLP.epochs, CNN.batch, CNN.held_out) == (10, 20, 256, 0.0)


def test_the_same_seed_gives_the_same_classifier_and_another_seed_another() -> None:
    pixels, labels = bars(128)
    spec = replace(CNN, epochs=1, batch=32)
    noise, _ = bars(200, seed=5)
    first, again, other = (
        train_classifier(spec, pixels, labels, classes=4, seed=seed).predict(noise) for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_training_leaves_the_global_generator_alone() -> None:
    pixels, labels = bars(64)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train_classifier(replace(MLP, epochs=1), pixels, labels, classes=4, seed=0)
    assert torch.equal(torch.rand(3), expected)


def test_the_epoch_is_chosen_on_held_out_training_images() -> None:
    """With labels that are mostly noise the held-out accuracy wanders, so the best epoch is rarely the last."""
    pixels, labels = bars(120)
    labels = np.where(np.random.default_rng(0).random(120) < 0.6, np.random.default_rng(1).permutation(labels), labels)
    spec = ClassifierSpec("MLP", mlp, epochs=8, batch=16, held_out=0.3)
    chosen = [train_classifier(spec, pixels, labels, classes=4, seed=seed).epoch for seed in range(4)]
    assert any(epoch < 8 for epoch in chosen)
    assert [train_classifier(replace(spec, held_out=0.0), pixels, labels, classes=4, seed=0).epoch] == [8]


def test_the_last_images_of_each_class_can_be_held_out() -> None:
    """A sample has its classes in turn, so they are its last images; a folder is read class by class."""
    for sort in [False, True]:
        labels = np.arange(120) % 4
        labels = np.sort(labels) if sort else labels
        pixels = np.zeros((120, 1, 4, 4), dtype=np.uint8)
        spec = ClassifierSpec("MLP", mlp, epochs=1, held_out=0.1, held_out_last=True)
        training = NetworkTraining(spec, pixels, labels, classes=4, seed=0)
        last = [row for label in range(4) for row in np.flatnonzero(labels == label)[-3:]]
        assert sorted(training.held_out.tolist()) == sorted(last)
        assert sorted([*training.held_out.tolist(), *training.rows.tolist()]) == list(range(120))
        assert sort or sorted(last) == list(range(108, 120))


def test_the_chosen_epochs_weights_are_the_ones_used() -> None:
    pixels, labels = bars(120)
    labels = np.where(np.random.default_rng(0).random(120) < 0.6, np.random.default_rng(1).permutation(labels), labels)
    spec = ClassifierSpec("MLP", mlp, epochs=8, batch=16, held_out=0.3)
    for seed in range(4):
        trained = train_classifier(spec, pixels, labels, classes=4, seed=seed)
        stopped = train_classifier(replace(spec, epochs=trained.epoch), pixels, labels, classes=4, seed=seed)
        noise, _ = bars(200, seed=5)
        assert (trained.predict(noise) == stopped.predict(noise)).all()


def test_a_collapsed_generator_of_one_class_is_scored_not_refused() -> None:
    for spec in [LOGISTIC_REGRESSION, replace(CNN, epochs=1)]:
        pixels, _ = bars(40)
        trained = train_classifier(spec, pixels, np.full(40, 2), classes=4, seed=0)
        found = score(trained, *bars(100, seed=1), classes=4)
        assert found.overall == 0.25
        assert found.per_class == (0.0, 0.0, 1.0, 0.0)
        assert found.worst_class == 0.0


def test_a_class_without_test_images_has_no_accuracy() -> None:
    pixels, labels = bars(64)
    found = score(train_classifier(LOGISTIC_REGRESSION, pixels, labels, classes=5, seed=0), pixels, labels, classes=5)
    assert found.per_class[4] is None
    assert found.worst_class is not None


def test_half_dropout_keeps_half_doubles_it_and_rests_in_evaluation() -> None:
    values = torch.ones(8, 16, 15, 17)
    dropped = HalfDropout().train()(values)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert abs(float(dropped.mean()) - 1.0) < 0.03
    assert torch.equal(HalfDropout().eval()(values), values)


def test_wrong_arrays_are_refused_without_their_values() -> None:
    pixels, labels = bars(10)
    with pytest.raises(ValueError, match="uint8"):
        train_classifier(MLP, pixels.astype(np.float32), labels, classes=4, seed=0)
    with pytest.raises(ValueError, match="one label for each"):
        train_classifier(MLP, pixels, labels[:-1], classes=4, seed=0)
    with pytest.raises(ValueError, match="numbers 0 to 2"):
        train_classifier(MLP, pixels, labels, classes=3, seed=0)


def test_the_bench_networks_have_the_parameter_counts_of_dpimagebench() -> None:
    """Counted by the layers of its ResNet-110, WRN-40-4 and ResNeXt-29 (8 groups, widen factor 4), grey, 10 classes."""

    def norm(width: int) -> int:
        return 2 * width

    def basic(inputs: int, outputs: int) -> int:
        shortcut = inputs * outputs + norm(outputs) if inputs != outputs else 0
        return 9 * inputs * outputs + 9 * outputs**2 + 2 * norm(outputs) + shortcut

    def wide(inputs: int, outputs: int) -> int:
        shortcut = inputs * outputs if inputs != outputs else 0
        return norm(inputs) + 9 * inputs * outputs + norm(outputs) + 9 * outputs**2 + shortcut

    def grouped(inputs: int, outputs: int) -> int:
        inner = 8 * outputs // 4
        convolutions = inputs * inner + 9 * inner * inner // 8 + inner * outputs
        shortcut = inputs * outputs + norm(outputs) if inputs != outputs else 0
        return convolutions + 2 * norm(inner) + norm(outputs) + shortcut

    def stages(block: Callable[[int, int], int], first: int, widths: tuple[int, ...], blocks: int) -> int:
        starts = (first, *widths[:-1])
        return sum(block(a, b) + (blocks - 1) * block(b, b) for a, b in zip(starts, widths, strict=True))

    expected = {
        "ResNet": 9 * 16 + norm(16) + stages(basic, 16, (16, 32, 64), 18) + 65 * 10,
        "WRN": 9 * 16 + stages(wide, 16, (64, 128, 256), 6) + norm(256) + 257 * 10,
        "ResNeXt": 9 * 64 + norm(64) + stages(grouped, 64, (256, 512, 1024), 3) + 1025 * 10,
    }
    assert expected == {"ResNet": 1_730_426, "WRN": 8_948_922, "ResNeXt": 34_425_546}
    for spec in PROTOCOLS["bench"].classifiers:
        assert spec.network is not None
        network = spec.network((1, 28, 28), 10)
        assert sum(parameter.numel() for parameter in network.parameters()) == expected[spec.name]
        assert (spec.epochs, spec.batch, spec.ema_decay, spec.centred) == (50, 256, 0.9999, True)
        assert [spec.optimizer.rate(epoch) for epoch in (0, 19, 20, 49)] == pytest.approx([0.01, 0.01, 0.002, 0.0004])
        assert round(spec.held_out * 60_000) == 5_000 and spec.held_out_last


def test_an_average_of_the_weights_is_what_is_scored() -> None:
    pixels, labels = bars(128)
    spec = ClassifierSpec("MLP", mlp, epochs=2, batch=16, optimizer=OptimizerSpec(0.05))
    noise = np.random.default_rng(5).integers(0, 256, size=(300, 1, 16, 16), dtype=np.uint8)
    plain = train_classifier(spec, pixels, labels, classes=4, seed=0).predict(noise)
    averaged = train_classifier(replace(spec, ema_decay=0.9999), pixels, labels, classes=4, seed=0).predict(noise)
    fast = train_classifier(replace(spec, ema_decay=0.0), pixels, labels, classes=4, seed=0).predict(noise)
    assert (plain != averaged).any()
    # A decay of 0 keeps nothing of the past, so the average is the training's own weights.
    assert (plain == fast).all()


def test_a_second_epoch_is_picked_on_validation_images() -> None:
    pixels, labels = bars(120)
    labels = np.where(np.random.default_rng(0).random(120) < 0.6, np.random.default_rng(1).permutation(labels), labels)
    spec = ClassifierSpec("MLP", mlp, epochs=8, batch=16, held_out=0.3)
    other = bars(60, seed=9)
    found = [train_classifier(spec, pixels, labels, classes=4, seed=seed, validation=other) for seed in range(4)]
    assert all(one.validated is not None for one in found)
    assert any(one.validated.epoch != one.epoch for one in found if one.validated is not None)
    alone = train_classifier(spec, pixels, labels, classes=4, seed=0)
    assert alone.validated is None and alone.epoch == found[0].epoch

"""Classifiers learn what is there, are repeatable, and choose an epoch without the set they are scored on."""

from __future__ import annotations

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

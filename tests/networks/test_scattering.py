"""Scattering features: their number, what they are blind to, and rows that do not see each other."""

from __future__ import annotations

import torch

from sfumato.networks.features import Scattering, ScatteringClassifier


def test_the_number_of_maps() -> None:
    for shape, maps in [((1, 28, 28), 81), ((3, 32, 32), 243), ((3, 64, 64), 651)]:
        scattering = Scattering(shape)
        assert scattering(torch.rand(2, *shape)).shape == (2, maps, 7, 7)
        assert scattering.size == maps * 49


def test_a_constant_image_has_no_first_and_no_second_order() -> None:
    maps = Scattering((1, 28, 28))(torch.full((1, 1, 28, 28), 0.7))
    assert torch.allclose(maps[:, 0], torch.full((1, 7, 7), 0.7), atol=1e-6)
    assert float(maps[:, 1:].abs().max()) < 1e-4


def test_an_oriented_wave_is_seen_by_its_orientation() -> None:
    wave = torch.sin(torch.arange(28.0) * torch.pi / 2).expand(1, 1, 28, 28)
    energy = Scattering((1, 28, 28))(0.5 + 0.5 * wave)[0, 1:9].mean((1, 2))
    assert int(energy.argmax()) == 0 and float(energy[4]) < 0.1 * float(energy[0])
    across = Scattering((1, 28, 28))(0.5 + 0.5 * wave.transpose(2, 3))[0, 1:9].mean((1, 2))
    assert int(across.argmax()) == 4


def test_a_row_does_not_depend_on_the_others_and_has_a_gradient() -> None:
    torch.manual_seed(0)
    classifier = ScatteringClassifier((1, 28, 28), 3)
    torch.nn.init.normal_(classifier.linear.weight)
    images = torch.rand(4, 1, 28, 28, requires_grad=True)
    logits = classifier(images)
    (gradient,) = torch.autograd.grad(logits[0].square().sum(), images)
    assert torch.isfinite(gradient).all() and float(gradient[0].abs().max()) > 0
    assert float(gradient[1:].abs().max()) == 0
    assert torch.isfinite(classifier(torch.zeros(1, 1, 28, 28))).all()

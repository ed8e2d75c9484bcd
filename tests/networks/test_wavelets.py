"""Fixed wavelets: what they see, what they do not, and a classifier that learns on them."""

from __future__ import annotations

import torch

from sfumato.data.digits import draw_digits
from sfumato.networks.features import LabelFilter, Wavelets


def test_a_row_of_features_for_each_image() -> None:
    for shape in [(1, 28, 28), (3, 64, 64), (1, 5, 9)]:
        torch.manual_seed(0)
        wavelets = Wavelets(shape)
        found = wavelets(torch.rand(2, *shape))
        assert found.shape == (2, wavelets.size)
        torch.testing.assert_close(found.square().mean(1), torch.ones(2), atol=1e-2, rtol=0.0)
        assert torch.isfinite(wavelets(torch.zeros(1, *shape))).all()
        assert not list(wavelets.parameters()) and not wavelets.state_dict()


def test_directions_are_told_apart_and_contrast_is_not() -> None:
    wavelets = Wavelets((1, 28, 28))
    upright = torch.zeros(1, 1, 28, 28)
    upright[..., 12:16] = 1.0
    lying = upright.transpose(2, 3)
    a, b, fainter = (wavelets(images)[0] for images in (upright, lying, 0.8 * upright))
    assert float((a - b).norm()) > 5 * float((a - fainter).norm())


def test_the_label_filter_learns_digits() -> None:
    torch.manual_seed(0)
    train, test = (draw_digits(count, seed=seed) for seed, count in enumerate((600, 200)))
    label_filter = LabelFilter((1, 28, 28), 10)
    images, labels = torch.as_tensor(train.pixels).float() / 255, torch.as_tensor(train.labels).long()
    features = label_filter.wavelets(images) / label_filter.wavelets.size**0.5
    optimizer = torch.optim.SGD(label_filter.parameters(), lr=30.0, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(label_filter.linear(features), labels).backward()
        optimizer.step()
    found = label_filter(torch.as_tensor(test.pixels).float() / 255).argmax(1)
    assert float((found == torch.as_tensor(test.labels)).double().mean()) > 0.8

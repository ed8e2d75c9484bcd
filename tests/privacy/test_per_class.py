"""One model for each class: a record moves its own slice, a person's clip holds over all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import plain_loop
from gradient_cases import Classifier, apart, make_batch, squared_error, vector
from sfumato.privacy.gradients import PerClass, check, clipped_sum, engine, groups_of
from sfumato.privacy.randomness import Draws


def make_models(classes: int = 3) -> PerClass:
    torch.manual_seed(0)
    return PerClass([Classifier().double() for _ in range(classes)])


CLIP = {"convolution": 0.2, "embedding": 0.3, "scale": 0.1, "linear": 0.5}


@pytest.mark.parametrize("rows", [1, 2])
def test_the_models_give_the_loops_sum(rows: int) -> None:
    models, batch = make_models(), make_batch(11, rows)
    sums = clipped_sum(models, squared_error, batch, CLIP)
    assert sums.keys() == dict(models.named_parameters()).keys()
    assert apart(sums, plain_loop.clipped_sum(models, squared_error, batch, CLIP)) < 1e-9
    assert next(iter(engine._known[models].values())).traced


def test_a_class_without_records_and_a_microbatch_of_one() -> None:
    models, batch = make_models(), make_batch(7)
    batch = replace(batch, labels=batch.labels.clamp(max=1))
    sums = clipped_sum(models, squared_error, batch, CLIP)
    assert not any(value.any() for name, value in sums.items() if name.startswith("models.2."))
    assert apart(sums, plain_loop.clipped_sum(models, squared_error, batch, CLIP)) < 1e-9
    assert apart(clipped_sum(models, squared_error, batch, CLIP, microbatch_size=1), sums) < 1e-9


def test_a_person_with_images_of_several_classes_is_clipped_once() -> None:
    models, batch = make_models(), make_batch(8, 4)
    generator = torch.Generator().manual_seed(3)
    batch = replace(batch, labels=torch.randint(3, (32,), generator=generator))
    sums = clipped_sum(models, squared_error, batch, 0.3)
    assert apart(sums, plain_loop.clipped_sum(models, squared_error, batch, 0.3)) < 1e-9
    for unit in range(8):
        one = clipped_sum(models, squared_error, batch.take(unit, unit + 1), 0.3)
        assert float(torch.linalg.vector_norm(vector(one))) <= 0.3


def test_a_person_of_several_classes_leaves_the_bits_of_the_others() -> None:
    models, batch = make_models(), make_batch(9, 4)
    labels = torch.arange(9).remainder(3).repeat_interleave(4)
    labels[8 * 4] = 0  # the last person's images are of two classes
    batch = replace(batch, labels=labels)
    one, others, all_ = (
        clipped_sum(models, squared_error, chosen, 1e-3, microbatch_size=4)
        for chosen in (batch.take(8, 9), batch.take(0, 8), batch)
    )
    assert all(torch.equal(all_[name], others[name] + one[name]) for name in all_)


def test_a_parameter_in_any_function() -> None:
    models, batch = make_models(), make_batch(8, 2)

    def loss(m: Classifier, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return squared_error(m, x, y, r) * m.scale.exp().mean()

    sums = clipped_sum(models, loss, batch, CLIP)
    assert apart(sums, plain_loop.clipped_sum(models, loss, batch, CLIP)) < 1e-9


def test_a_poisoned_record_leaves_the_others() -> None:
    models, batch = make_models(), make_batch(8)
    images = batch.images.clone()
    images[2] = float("nan")
    sums = clipped_sum(models, squared_error, replace(batch, images=images), CLIP)
    rest = batch.select(torch.tensor([0, 1, 3, 4, 5, 6, 7]))
    assert apart(sums, plain_loop.clipped_sum(models, squared_error, rest, CLIP)) < 1e-9


def test_layers_of_class_models() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(2, 4, 3, groups=2, padding=1)
            self.normal = nn.GroupNorm(2, 4)
            self.up = nn.ConvTranspose2d(4, 4, 3, stride=2, groups=2, output_padding=1)
            self.layer = nn.LayerNorm(14)
            self.token = nn.Parameter(torch.rand(1, 14))
            self.last = nn.Linear(14, 3, bias=False)

        def forward(self, images: Tensor, labels: Tensor) -> Tensor:
            h = self.layer(self.up(torch.tanh(self.normal(self.down(images)))))
            return self.last(h.mean((1, 2)) + self.token.expand(len(images), -1)).tanh()

    torch.manual_seed(0)
    models, batch = PerClass([Mixed().double() for _ in range(3)]), make_batch(9, 2)
    expected = plain_loop.clipped_sum(models, squared_error, batch, 0.3)
    assert apart(clipped_sum(models, squared_error, batch, 0.3), expected) < 1e-9
    assert next(iter(engine._known[models].values())).traced


def test_groups_hold_their_part_of_every_class() -> None:
    groups = groups_of(make_models(2), CLIP)
    assert groups["scale"] == (0.1, ["models.0.scale", "models.1.scale"])
    check(make_models(), squared_error, make_batch(8, 2), CLIP)


def test_different_architectures_are_refused() -> None:
    with pytest.raises(ValueError, match="same names"):
        PerClass([nn.Linear(2, 1), nn.Linear(3, 1)])
    with pytest.raises(ValueError, match="at least one"):
        PerClass([])

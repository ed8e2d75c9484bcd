"""Random networks, shapes and losses: tracing, torch.func and the loop give the same sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import plain_loop
from gradient_cases import apart, make_batch
from sfumato.privacy.gradients import clipped_sum, engine
from sfumato.privacy.randomness import Draws


class Network(nn.Module):
    """Layers from a list: each entry is a kind and numbers that shape it."""

    def __init__(self, recipe: list[tuple[str, int, int, int]]) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.again: list[bool] = []
        self.layers = nn.ModuleList()
        self.scales = nn.ParameterList()
        channels, size = 4, 6
        for kind, a, b, c in recipe:
            if kind == "conv":
                groups = (1, 2, 4)[a % 3]
                layer: nn.Module = nn.Conv2d(
                    channels,
                    4 * (1 + b % 2),
                    1 + c % 3,
                    stride=1 + a % 2,
                    padding=1 + b % 2,
                    dilation=1 + c % 2,
                    groups=groups,
                    bias=bool(b % 2),
                )
            elif kind == "transposed":
                stride = 1 + a % 2
                layer = nn.ConvTranspose2d(
                    channels,
                    4,
                    2 + c % 2,
                    stride=stride,
                    padding=b % 2,
                    dilation=1 + c % 2,
                    output_padding=a % stride,
                    groups=(1, 2, 4)[b % 3],
                )
            elif kind == "group":
                layer = nn.GroupNorm((1, 2, 4)[a % 3], channels)
            elif kind == "instance":
                layer = nn.InstanceNorm2d(channels, affine=True)
            elif kind == "layer":
                layer = nn.LayerNorm(size)
            elif kind == "linear":
                layer = nn.Linear(size, 3 + a % 4, bias=bool(b % 2))
            elif kind == "scale":
                layer = nn.Identity()
                self.scales.append(nn.Parameter(torch.rand(channels, 1, 1) if a % 2 else torch.rand(1, 1, 1, 1)))
            else:
                layer = nn.Identity()
            with torch.no_grad():
                result = layer(torch.zeros(1, channels, size, size))
            if result.shape[2] < 3 or (result.shape[3] != result.shape[2] and kind != "linear"):
                continue
            if kind == "linear":
                layer = nn.Linear(size, size, bias=bool(b % 2))
                result = torch.zeros(1, channels, size, size)
            self.kinds.append(kind)
            self.again.append(result.shape == (1, channels, size, size))
            self.layers.append(layer)
            channels, size = result.shape[1], result.shape[2]
        self.table = nn.Embedding(3, 5)
        self.head = nn.Linear(channels * size * size + 5, 4)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        h, scales = images, iter(self.scales)
        for kind, again, layer in zip(self.kinds, self.again, self.layers, strict=True):
            if kind == "scale":
                scale = next(scales)
                h = h * scale + scale
            elif kind == "twice":
                h = torch.sin(h) + 0.5 * h
            else:
                h = layer(h)
                if again:
                    # The same layer once more: cross terms.
                    h = layer(torch.tanh(h))
            h = functional.silu(h)
        return self.head(torch.cat([h.flatten(1), self.table(labels)], 1))


recipes = st.lists(
    st.tuples(
        st.sampled_from(["conv", "transposed", "group", "instance", "layer", "linear", "scale", "twice"]),
        st.integers(0, 5),
        st.integers(0, 5),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=4,
)


def smooth(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
    return (model(images, labels) - random.normal("t", 4).to(images.dtype)).square().sum(1)


def entropy(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
    noisy = images + 0.1 * random.uniform("n", *images.shape[1:]).to(images.dtype)
    return functional.cross_entropy(model(noisy, labels), labels, reduction="none")


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    recipes,
    st.integers(4, 7),
    st.integers(1, 3),
    st.sampled_from([smooth, entropy]),
    st.floats(0.05, 3.0),
    st.booleans(),
    st.integers(0, 99),
)
def test_tracing_torch_func_and_the_loop_agree(
    recipe: list[tuple[str, int, int, int]], units: int, rows: int, loss: object, clip: float, grouped: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    model = Network(recipe).double()
    batch = make_batch(units, rows, shape=(4, 6, 6), seed=seed)
    clips: dict[str, float] | float = clip
    if grouped:
        names = {name.split(".")[0] for name, _ in model.named_parameters()}
        clips = {name: clip * (1 + i) for i, name in enumerate(sorted(names))}
    expected = plain_loop.clipped_sum(model, loss, batch, clips)
    assert apart(clipped_sum(model, loss, batch, clips), expected) < 1e-10
    known = next(iter(engine._known[model].values()))
    assert known.traced
    known.traced = False
    assert apart(clipped_sum(model, loss, batch, clips), expected) < 1e-10


@pytest.mark.filterwarnings("ignore::sfumato.privacy.gradients.places.RowOrderWarning")
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(recipes, st.integers(1, 2), st.integers(0, 99))
def test_in_float32_each_record_agrees_to_a_hundred_thousandth_of_its_norm(
    recipe: list[tuple[str, int, int, int]], rows: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = Network(recipe)
    batch = make_batch(2, rows, shape=(4, 6, 6), seed=seed, dtype=torch.float32)
    for unit in range(batch.units):
        one = batch.take(unit, unit + 1)
        gradient = plain_loop.unit_gradient(model, smooth, one)
        norm = sum(float(value.square().sum()) for value in gradient.values()) ** 0.5
        found = clipped_sum(model, smooth, one, 2.0 * norm, microbatch_size=2)  # nothing is clipped
        distance = sum(float((found[name] - gradient[name]).square().sum()) for name in gradient) ** 0.5
        assert distance <= 1e-5 * norm

"""The models and batches that ``gradients.py`` measures, and the ways to a sum of clipped gradients."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from networks import MODELS
from sfumato.privacy.gradients import Batch, clipped_sum
from sfumato.privacy.randomness import Randomness

Sums = dict[str, Tensor]


def loss(model: nn.Module, images: Tensor, labels: Tensor, random: object, state: Tensor) -> Tensor:
    """The models return their rows' losses; ``state`` carries noise drawn beforehand, the same for every contender."""
    return model(images, labels, state)


@dataclass
class Case:
    """A model, a batch and a clip that binds for about half of it."""

    name: str
    model: nn.Module
    batch: Batch
    clip: float
    autocast: bool = False

    @property
    def draws(self) -> int:
        return self.batch.rows_per_unit

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters())

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast(batch.images.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            return model(batch.images, batch.labels, batch.state)


def make(name: str, units: int, device: torch.device, *, draws: int = 1, autocast: bool = False) -> Case:
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    shape = getattr(model, "shape")  # noqa: B009
    ids = torch.arange(units, device=device).repeat_interleave(draws)
    images, labels = torch.rand(units, *shape, device=device), torch.randint(10, (units,), device=device)
    batch = Batch(
        images.repeat_interleave(draws, 0), labels.repeat_interleave(draws),
        Randomness(0).draws(ids, torch.arange(draws, device=device).repeat(units), "benchmark"),
        torch.full((units, draws), 1.0 / draws, device=device),
        torch.randn(units * draws, shape[1] * shape[2] + 1, device=device),
    )  # fmt: skip
    few = batch.take(0, min(16, units))
    parameters = list(model.parameters())
    losses = (loss(model, *arguments_of(few.take(i, i + 1))).mean() for i in range(few.units))
    norms = [norm_of(torch.autograd.grad(value, parameters)) for value in losses]
    return Case(name, model, batch, statistics.median(norms), autocast)


def arguments_of(batch: Batch) -> tuple[Tensor, Tensor, object, Tensor]:
    if batch.state is None:
        raise ValueError("the benchmark's batches carry their noise as state")
    return batch.images, batch.labels, batch.random, batch.state


def norm_of(gradients: tuple[Tensor, ...]) -> float:
    return sum(float(gradient.double().square().sum()) for gradient in gradients) ** 0.5


def plain(case: Case) -> Callable[[Batch], Sums]:
    def step(batch: Batch) -> Sums:
        total = case.forward(case.model, batch).sum() / case.draws
        return dict(zip(case.parameters, torch.autograd.grad(total, list(case.parameters.values())), strict=True))

    return step


def ours(case: Case) -> Callable[[Batch], Sums]:
    def step(batch: Batch) -> Sums:
        with torch.autocast(batch.images.device.type, dtype=torch.bfloat16, enabled=case.autocast):
            return clipped_sum(case.model, loss, batch, case.clip, microbatch_size=size)

    most = 256 if case.batch.images.device.type == "cpu" else 16384
    # Equal parts of the batch, so that none is padded.
    parts = next(n for n in range(1, case.batch.units + 1) if case.batch.units % n == 0 and
                 case.batch.units // n * case.draws <= max(most, case.draws))  # fmt: skip
    size = case.batch.units // parts
    return step


def hooks(case: Case) -> Callable[[Batch], Sums]:
    from opacus import GradSampleModule

    module = GradSampleModule(_copy(case), loss_reduction="sum")

    def step(batch: Batch) -> Sums:
        module.zero_grad(set_to_none=True)
        case.forward(module, batch).sum().backward()
        samples = {
            name.removeprefix("_module."): p.grad_sample.view(batch.units, case.draws, *p.shape).mean(1)
            for name, p in module.named_parameters()
        }
        squared = sum(
            (s.flatten(1).square().sum(1) for s in samples.values()), torch.zeros((), device=batch.images.device)
        )
        factor = (case.clip / torch.sqrt(squared)).clamp(max=1.0)
        sums = {name: torch.einsum("i,i...", factor, sample) for name, sample in samples.items()}
        for parameter in module.parameters():
            parameter.grad_sample = None
        return sums

    return step


def ghost(case: Case) -> Callable[[Batch], Sums]:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    if case.draws > 1:
        raise RuntimeError("ghost clipping in Opacus measures rows, not averages of rows")
    module = GradSampleModuleFastGradientClipping(
        _copy(case), max_grad_norm=case.clip, use_ghost_clipping=True, loss_reduction="sum"
    )

    def step(batch: Batch) -> Sums:
        module.zero_grad(set_to_none=True)
        module.enable_hooks()
        rows = case.forward(module, batch)
        rows.sum().backward(retain_graph=True)
        factor = module.get_clipping_coef()
        module.zero_grad(set_to_none=True)
        module.disable_hooks()
        (factor * rows).sum().backward()
        return {n.removeprefix("_module."): p.grad for n, p in module.named_parameters() if p.grad is not None}

    return step


def _copy(case: Case) -> nn.Module:
    """Opacus changes the module it is given."""
    model = MODELS[case.name]().to(case.batch.images.device)
    model.load_state_dict(case.model.state_dict())
    return model


def functional_chunks(case: Case) -> Callable[[Batch], Sums]:
    values = {name: p.detach() for name, p in case.parameters.items()}

    def one(values: Sums, image: Tensor, label: Tensor, noise: Tensor) -> Tensor:
        return functional_call(case.model, values, (image, label, noise)).mean()

    per_row = vmap(grad(one), in_dims=(None, 0, 0, 0))

    def step(batch: Batch) -> Sums:
        total = {name: torch.zeros_like(p) for name, p in values.items()}
        for start in range(0, batch.units, 64):
            part = batch.take(start, min(batch.units, start + 64))
            images, labels, _, noise = arguments_of(part)
            with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=case.autocast):
                rows = [value.view(part.units, case.draws, *value.shape[1:]) for value in (images, labels, noise)]
                samples = per_row(values, *rows)
            squared = torch.stack([s.flatten(1).square().sum(1) for s in samples.values()]).sum(0)
            factor = (case.clip / torch.sqrt(squared)).clamp(max=1.0)
            for name, sample in samples.items():
                total[name] += torch.einsum("i,i...", factor, sample)
        return total

    return step


def microbatch(case: Case) -> Callable[[Batch], Sums]:
    def step(batch: Batch) -> Sums:
        total = {name: torch.zeros_like(p) for name, p in case.parameters.items()}
        for i in range(batch.units):
            case.model.zero_grad(set_to_none=True)
            case.forward(case.model, batch.take(i, i + 1)).mean().backward()
            nn.utils.clip_grad_norm_(case.model.parameters(), case.clip)
            for name, parameter in case.parameters.items():
                if parameter.grad is not None:
                    total[name] += parameter.grad
        case.model.zero_grad(set_to_none=True)
        return total

    return step


CONTENDERS: dict[str, Callable[[Case], Callable[[Batch], Sums]]] = {
    "plain": plain,
    "ours": ours,
    "opacus hooks": hooks,
    "opacus ghost": ghost,
    "vmap": functional_chunks,
    "micro-batch loop": microbatch,
}

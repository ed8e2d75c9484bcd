"""DPPM as published: sliced score matching with randomised response on the projection vectors."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import check_choices, check_ema_decay, expected
from sfumato.methods.parts.score_sampling import ScoreSampling, randomised_response, sliced_loss
from sfumato.methods.published import RawRecords
from sfumato.networks.pixels import Shape, per_row
from sfumato.networks.score import RefineNet
from sfumato.privacy import Counts, Curator, SubsampledGaussian
from sfumato.training.optimisation import ema_update, set_learning_rate, warmup_cosine_decay

_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class DPPMPublished(ScoreSampling):
    """Sliced score matching of a RefineNet (Liu et al., 2023), Algorithm 1, and Hamiltonian sampling, Algorithm 2.

    Guarantee: none. The randomised response is applied to projection vectors, which do not depend on the data; the
    records enter the loss directly.

    Differs from the paper: it trains on noisy images of many levels, so that the sampler can be annealed; the network
    is preconditioned, and its normalisations see the label; ``projections = "all"`` takes ‖s‖² for (vᵀs)², its
    expectation; the learning rate is warmed up and decays, gradients are limited and weights averaged.

    >>> from sfumato.privacy import NoGuarantee
    >>> DPPMPublished().plan(NoGuarantee()).events
    ()
    """

    name: ClassVar[str] = "dppm-published"
    paper: ClassVar[str] = "Liu, Ge, Wang, Zhuang, Liu: Learning Differentially Private Probabilistic Models (2023)"
    variants: ClassVar[Mapping[str, str]] = {
        "published": "randomised response on projection vectors: raw access, no guarantee"
    }
    raw_access: ClassVar[bool] = True
    paper_settings: ClassVar[Mapping[str, Any]] = {
        "width": 128,
        "projections": "one",
        "derivative": "forward",
        "response_epsilon": 10.0,
        "neighbours": 10,
    }

    sampler: str = "hamiltonian"
    sampling_steps: int = 40
    sigma_max: float = 3.0
    sigma_min: float = 0.1
    derivative: str = "difference"
    width: int = 32
    sigma_data: float = 0.6
    loss_line: str = "second"
    projections: str = "all"
    iterations: int = 10_000
    batch_size: int = 128
    learning_rate: float = 0.002
    ema_decay: float = 0.995
    response_epsilon: float = 1.0
    neighbours: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, {"loss_line": ("first", "second"), "projections": ("one", "all")})
        check_ema_decay(self.ema_decay)
        if self.neighbours < 2:
            raise ValueError(f"randomised response needs at least 2 neighbours, not {self.neighbours}")
        if self.response_epsilon <= 0:
            raise ValueError(f"response_epsilon must be positive, not {self.response_epsilon:g}")

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(
            variant=variant, width=4, iterations=2, batch_size=8, neighbours=3, sampling_steps=2, leapfrog_steps=1
        )

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        return ()

    def claim(self) -> dict[str, Any]:
        """The paper's pure ε, which is that of one randomised response."""
        return {"epsilon": self.response_epsilon, "delta": 0.0, "by": self.paper}

    def build(self, shape: Shape, classes: int) -> RefineNet:
        return RefineNet(shape, classes, width=self.width, sigma_data=self.sigma_data)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        """Algorithm 1, on noisy images."""
        model = self.build(curator.shape, len(curator.classes)).to(curator.device)
        average = deepcopy(model)
        records = RawRecords(curator, "DPPM trains on the records themselves; its noise is on vectors without data")
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        iterations = self.iterations if len(records) else 0
        for number in curator.track(range(iterations), "train", iterations):
            images, labels = records.take(torch.randint(len(records), (self.batch_size,)))
            set_learning_rate(optimizer, self.learning_rate * warmup_cosine_decay(number / iterations))
            optimizer.zero_grad(set_to_none=True)
            self.loss(model, 2.0 * images - 1.0, labels).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
            optimizer.step()
            ema_update(average, model, index=number, decay=self.ema_decay)
        return average, None

    def loss(self, model: RefineNet, clean: Tensor, labels: Tensor) -> Tensor:
        """Equation (7) at a random noise level of each image, ``[B]``."""
        # One level from each slice of their distribution: less variance, the same expectation.
        quantiles = (torch.randperm(len(clean)) + torch.rand(len(clean))) / len(clean)
        sigma = self.training_sigma(quantiles.to(clean))
        noisy = clean + per_row(sigma) * torch.randn_like(clean)
        projection = torch.randn_like(clean)
        direction = nn.functional.normalize(projection.flatten(1), dim=1)
        chosen = randomised_response(
            direction @ direction.T,
            neighbours=min(self.neighbours, len(clean)),
            epsilon=self.response_epsilon,
            uniform=torch.rand(len(clean), 2, device=clean.device),
        )
        return sliced_loss(
            model,
            noisy,
            sigma,
            labels,
            projection,
            projection[chosen],
            derivative=self.derivative,
            line=self.loss_line,
            all_directions=self.projections == "all",
        )

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        return self.draw(expected(model, RefineNet), labels)

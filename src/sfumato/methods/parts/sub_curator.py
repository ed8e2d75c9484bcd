"""A method inside a method: both ask one Curator, under one plan and one ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from sfumato.privacy import Budget, Counts, Curator, Plan, PrivateState, SubsampledGaussian
from sfumato.privacy.curator import Item
from sfumato.privacy.step import Features, Step


def prefixed(queries: Iterable[SubsampledGaussian], prefix: str) -> tuple[SubsampledGaussian, ...]:
    """The inner method's queries as the outer method lists them."""
    return tuple(replace(query, name=prefix + query.name) for query in queries)


def with_share(queries: Sequence[SubsampledGaussian], budget: Budget, share: float) -> tuple[SubsampledGaussian, ...]:
    """The queries with the noise that alone would cost this share of ε; it is fixed in the plan of the whole."""
    if not queries:
        return ()
    alone = Plan.calibrated(queries, replace(budget, epsilon=share * budget.epsilon))
    return tuple(replace(e, blocks=tuple(replace(block, fixed=True) for block in e.blocks)) for e in alone.events)


def sub_curator(curator: Curator, prefix: str) -> Curator:
    """The Curator as the inner method sees it: the names it asks by get the prefix, and nothing else changes."""
    return cast(Curator, _SubCurator(curator, prefix))


class _SubCurator:
    """Hands every query on to the outer Curator, which alone clips, sums, charges and adds noise."""

    def __init__(self, outer: Curator, prefix: str) -> None:
        self._outer, self._prefix = outer, prefix
        self.shape, self.classes, self.device = outer.shape, outer.classes, outer.device
        own = (event for event in outer.plan.events if event.name.startswith(prefix))
        events = tuple(replace(event, name=event.name.removeprefix(prefix)) for event in own)
        self.plan = Plan(outer.plan.budget, events)

    def steps(self, name: str, *, keep: Mapping[str, Any] | None = None) -> Iterator[Step]:
        return self._outer.steps(self._prefix + name, keep=keep)

    def noisy_sum(self, name: str, features: Features, *, clip_norm: float, by_class: bool = False) -> Tensor:
        return self._outer.noisy_sum(self._prefix + name, features, clip_norm=clip_norm, by_class=by_class)

    def noisy_second_moments(
        self, name: str, features: Features, *, clip_norm: float, by_class: bool = False
    ) -> Tensor:
        return self._outer.noisy_second_moments(self._prefix + name, features, clip_norm=clip_norm, by_class=by_class)

    def noisy_histogram(self, name: str) -> Counts:
        return self._outer.noisy_histogram(self._prefix + name)

    def private_state(
        self, name: str, shape: tuple[int, ...], *, fill: float = 0.0, shards: int | None = None
    ) -> PrivateState:
        return self._outer.private_state(self._prefix + name, shape, fill=fill, shards=shards)

    def track(
        self, items: Iterable[Item], name: str, total: int, *, keep: Mapping[str, Any] | None = None
    ) -> Iterator[Item]:
        return self._outer.track(items, self._prefix + name, total, keep=keep)

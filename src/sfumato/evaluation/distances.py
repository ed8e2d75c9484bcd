"""Distances of an evaluation: FID, KID, precision, recall, density and coverage of each row, and Inception Score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import torch

from sfumato.evaluation.cache import cached_statistics, content_key
from sfumato.evaluation.classifiers import Progress
from sfumato.evaluation.features import FeatureNetwork
from sfumato.evaluation.fidelity import FeatureStatistics, Manifold, frechet_distance, kernel_distance, manifold
from sfumato.evaluation.image_sets import LabelledImages
from sfumato.evaluation.inception import InceptionHead, inception_score
from sfumato.evaluation.measuring import Measuring
from sfumato.evaluation.results import SYNTHETIC, ImageSet, Measurement
from sfumato.evaluation.rows import Row

NEIGHBOURS = 5
SUBSETS = 100


class DistanceMeasure:
    """Compares rows by the features of one network; each set of images goes through the network once.

    Only values of the published Inception network are called FID and KID.
    """

    def __init__(
        self,
        network: FeatureNetwork,
        measuring: Measuring,
        *,
        cache: Path | None,
        device: torch.device,
        progress: Progress,
    ) -> None:
        self.network, self.measuring, self.identity = network, measuring, network.identity()
        self.cache = cache if self.identity.published else None
        self.device, self.progress = device, progress
        self._known: dict[str, FeatureStatistics] = {}

    def measure(self, row: Row) -> list[Measurement]:
        """All distances of a row."""
        # Statistics of synthetic images are not kept in the cache: a next training has other images.
        keep = row.name != SYNTHETIC
        reference = self._statistics(row.reference.only, row.name, keep=True)
        candidates = [self._statistics(part, row.name, keep=keep) for part in row.compared.sets]
        self.progress(f"{row.name}: distances", 0, 1)
        measured = [self._frechet(row, reference, candidates)]
        if self.identity.published:
            measured.append(self._kernel(row, reference, candidates))
        measured += self._manifold(row, reference, candidates)
        self.progress(f"{row.name}: distances", 1, 1)
        return measured

    def inception_score(self, row: Row, head: InceptionHead) -> Measurement:
        """The Inception Score of a row, by the user's classifier head."""
        found = [self._statistics(part, row.name, keep=False) for part in row.compared.sets]
        scores = [inception_score(statistics.rows, head=head) for statistics in found]
        one = len(scores) == 1
        return self.measuring.measurement(
            "inception_score",
            [value for value, _ in scores],
            row=row.name,
            candidate=row.compared.described,
            reference=ImageSet("none", None, 0),
            features=self.identity,
            seeds=[],
            std=scores[0][1] if one else None,
            std_over="splits" if one else "generators",
            settings={"head": head.hash, "splits": 10, "rows": len(found[0].rows)},
        )

    def _statistics(self, images: LabelledImages, row: str, *, keep: bool) -> FeatureStatistics:
        key = content_key(images.pixels, self.network)
        if key not in self._known:
            self._known[key] = cached_statistics(
                self.network,
                images.pixels,
                folder=self.cache if keep else None,
                device=self.device,
                progress=lambda task, done, total: self.progress(f"{row}: {task}", done, total),
            )
        return self._known[key]

    def _frechet(self, row: Row, reference: FeatureStatistics, candidates: Sequence[FeatureStatistics]) -> Measurement:
        distances = [frechet_distance(reference, candidate) for candidate in candidates]
        return self._measured("fid" if self.identity.published else "frechet_distance", distances, row)

    def _kernel(self, row: Row, reference: FeatureStatistics, candidates: Sequence[FeatureStatistics]) -> Measurement:
        found = [kernel_distance(reference, candidate, subsets=SUBSETS) for candidate in candidates]
        _, deviation, size = found[0]
        one = len(found) == 1
        return self.measuring.measurement(
            "kid",
            [mean for mean, _, _ in found],
            row=row.name,
            candidate=row.compared.described,
            reference=row.reference.described,
            features=self.identity,
            seeds=[0],
            # The deviation of one set's KID is the one over its subsets, as papers print it.
            std=deviation if one else None,
            std_over="subsets" if one else "generators",
            settings={"subsets": SUBSETS, "subset_size": size, "subset_std": deviation},
        )

    def _manifold(
        self, row: Row, reference: FeatureStatistics, candidates: Sequence[FeatureStatistics]
    ) -> Iterator[Measurement]:
        found = [manifold(reference.rows, candidate.rows, neighbours=NEIGHBOURS) for candidate in candidates]
        settings = {"neighbours": NEIGHBOURS, "rows": [len(reference.rows), len(candidates[0].rows)]}
        for field in fields(Manifold):
            values = [float(getattr(one, field.name)) for one in found]
            yield self._measured(field.name, values, row, settings)

    def _measured(
        self, metric: str, values: Sequence[float], row: Row, settings: dict[str, object] | None = None
    ) -> Measurement:
        return self.measuring.measurement(
            metric,
            values,
            row=row.name,
            candidate=row.compared.described,
            reference=row.reference.described,
            features=self.identity,
            seeds=[],
            std_over="generators",
            settings=settings,
        )

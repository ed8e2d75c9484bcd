"""PRIVAE's two experiments: sparse codes of Fashion-MNIST, and a pinwheel that falls into four clusters.

    python benchmarks/privae.py pinwheel --out pinwheel
    python benchmarks/privae.py sparse --data DIR --epsilon 1 --epsilon 3 --epsilon 10 --runs 10 --out sparse
    python benchmarks/privae.py draw --results sparse/results.json --out sparse

DIR holds idx files. Every training is fresh: no seed, another noise each time. ``sparse`` trains each form at each ε
and without privacy, after as many shorter trials of each form at ε 3, and writes results.json after every training;
given again, it goes on from there. ``draw`` makes the figure and the table. Everything here is computed from real data
and is NOT private.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from sfumato.data import PrivateImages, PublicImages
from sfumato.evaluation.latent_codes import code_measures, hoyer
from sfumato.evaluation.results import NOTICE
from sfumato.experiments.papers.result import machine
from sfumato.methods.privae import PRIVAE, Terms
from sfumato.networks.dense import VariationalAutoencoder
from sfumato.networks.priors import StandardNormal
from sfumato.privacy import Budget, PrivateRecords, Randomness

DELTA = 1e-5
TRIAL_EPSILON, TRIAL_STEPS = 3.0, 400
METRICS = ("sparsity", "MMD", "log-likelihood")


# Without privacy


def fit_openly(method: PRIVAE, images: Tensor, labels: Tensor, *, batch: int, steps: int) -> VariationalAutoencoder:
    """The same loss on whole batches with nothing clipped and no noise: what privacy costs is measured against it."""
    shape = (images.shape[1], images.shape[2], images.shape[3])
    model = method.build(shape, 1).to(images.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=method.learning_rate)
    terms, randomness = Terms(method, method.code_prior(), method.divergence_of()), Randomness()
    for step in range(steps):
        rows = torch.randint(len(images), (batch,), device=images.device)
        draws = randomness.draws(rows, torch.zeros_like(rows), step)
        optimizer.zero_grad(set_to_none=True)
        terms.whole(model, images[rows], labels[rows], draws).backward()
        optimizer.step()
    return model


# The pinwheel


def pinwheel(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points of four spiral arms in the unit square, as images of one by two pixels, and their arms."""
    arms = np.arange(count) % 4
    radius = np.clip(1.0 + 0.3 * random.standard_normal(count), 0.1, 2.0)
    angle = arms * math.pi / 2 + 1.0 * (radius - 1.0) + 0.1 * random.standard_normal(count) / radius
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    # Radii end at 2, by construction: the scale is public.
    return (points / 4.0 + 0.5).astype(np.float32).reshape(count, 1, 1, 2), arms


PINWHEEL = PRIVAE(
    variant="linearised",
    sampling_rate=0.5,
    steps=100,
    prior="corners",
    divergence="kl",
    alpha=1.0,
    beta=0.0,
    draws=4,
    likelihood="normal",
    pixel_std=0.1,
    latent_dim=2,
    hidden=32,
    depth=2,
    clip_norm=1.0,
    learning_rate=0.02,
    count_noise=20.0,
)
PINWHEEL_FORMS = {
    "without, β 1": replace(PINWHEEL, alpha=0.0, beta=1.0),
    "without, β 0": replace(PINWHEEL, alpha=0.0),
    "linearised": PINWHEEL,
    "grouped": replace(PINWHEEL, variant="grouped", groups=8, group_clip_norm=0.003),
}


def agreement(method: PRIVAE, codes: np.ndarray, arms: np.ndarray) -> dict[str, float]:
    """Adjusted Rand index of the arms with the prior's nearest corner, and with four clusters found in the codes."""
    corners = method.code_prior().corners.numpy()  # type: ignore[attr-defined]
    nearest = ((codes[:, None] - corners) ** 2).sum(2).argmin(1)
    found = KMeans(4, n_init=10, random_state=0).fit_predict(codes)
    return {"corners": adjusted_rand_score(arms, nearest), "clusters": adjusted_rand_score(arms, found)}


def run_pinwheel(options: argparse.Namespace) -> None:
    points, arms = pinwheel(400, np.random.default_rng(0))
    images, labels = torch.from_numpy(points), torch.zeros(400, dtype=torch.int64)
    settings = dict(text.split("=", 1) for text in options.set)
    results: list[dict[str, Any]] = []
    shown = {}
    for name, method in PINWHEEL_FORMS.items():
        if options.form and name not in options.form:
            continue
        for run in range(options.runs):
            chosen = PRIVAE.configured({**method.parameters(), **settings})
            start = time.perf_counter()
            release = chosen.fit(PrivateRecords(points), Budget(options.epsilon, DELTA), device="cpu")
            model = release.model
            if not isinstance(model, VariationalAutoencoder):
                raise TypeError("a release of PRIVAE holds a variational autoencoder")
            with torch.no_grad():
                posterior = model.encode(images, labels)
                codes = posterior.mean
                rebuilt = torch.sigmoid(model.decode(codes, labels))
            error = float((rebuilt - images).square().sum((1, 2, 3)).mean().sqrt())
            seconds = time.perf_counter() - start
            found = {"form": name, "run": run, "epsilon": release.card.epsilon, "error": error, "seconds": seconds}
            results.append({**found, **agreement(chosen, codes.numpy(), arms)})
            print(json.dumps(results[-1], ensure_ascii=False), flush=True)
            if run == 0:
                shown[name] = (rebuilt.flatten(1).numpy(), codes.numpy(), results[-1])
    report = {"notice": NOTICE, "machine": machine(), "torch": torch.__version__, "results": results}
    (options.out / "pinwheel.json").write_text(json.dumps(report, indent=1, ensure_ascii=False))
    draw_pinwheel(points.reshape(-1, 2), arms, shown, options.out / "pinwheel.png")
    for name in shown:
        own = [r for r in results if r["form"] == name]
        cells = [f"{key} {spread([r[key] for r in own])}" for key in ("corners", "clusters", "error")]
        print(f"{name}: {len(own)} trainings, {', '.join(cells)}")


def draw_pinwheel(points: np.ndarray, arms: np.ndarray, shown: dict[str, Any], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(shown), figsize=(4 * len(shown), 8), squeeze=False)
    for column, (name, (rebuilt, codes, result)) in enumerate(shown.items()):
        above, below = axes[0][column], axes[1][column]
        above.scatter(*points.T, s=6, c="#b0455b", label="data")
        above.scatter(*rebuilt.T, s=6, c="#c9a227", label="rebuilt")
        above.set_title(name)
        below.scatter(*codes.T, s=6, c=arms, cmap="tab10", vmin=0, vmax=9)
        below.set_title(
            f"codes by arm: Rand index {result['corners']:.2f} (corners), {result['clusters']:.2f} (clusters)"
        )
        below.title.set_fontsize(9)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


# Sparse codes


# The paper's α = 100 is on a kernel that is summed over 50 dimensions and 6 scales; ours is averaged.
SPARSE = PRIVAE(
    sampling_rate=0.0125, steps=600, prior="sparse", divergence="mmd", alpha=30000.0, latent_dim=50, hidden=100
)
FORMS: dict[str, PRIVAE] = {
    "no divergence": replace(SPARSE, variant="grouped", alpha=0.0),
    "linearised": SPARSE,
    "grouped": replace(SPARSE, variant="grouped"),
    "micro-aggregation": replace(SPARSE, variant="micro-aggregation"),
    "batch-aggregation": replace(SPARSE, variant="batch-aggregation"),
}
# The paper trains these for ten epochs with Adam.
OPEN = {
    "VAE, not private": replace(SPARSE, alpha=0.0, steps=2344, learning_rate=0.002),
    "VAE + MMD, not private": replace(SPARSE, steps=2344, learning_rate=0.002),
}


@dataclass(frozen=True)
class Task:
    """One training and what its codes are like."""

    form: str
    epsilon: float | None
    run: int
    settings: dict[str, Any]
    trial: bool
    folder: str
    device: str
    threads: int

    @property
    def name(self) -> tuple[Any, ...]:
        return (self.form, self.epsilon, self.run, self.trial, self.method.parameters())

    @property
    def method(self) -> PRIVAE:
        base = FORMS[self.form] if self.epsilon else OPEN[self.form]
        return PRIVAE.configured({**base.parameters(), **self.settings})


@functools.cache
def pixels_of(folder: str, split: str) -> np.ndarray:
    return np.ascontiguousarray(PublicImages.read(folder, split=split, classes=10).pixels)


def judge(task: Task) -> dict[str, Any]:
    torch.set_num_threads(task.threads)
    method, device = task.method, torch.device(task.device)
    train = pixels_of(task.folder, "train")
    start = time.perf_counter()
    if task.epsilon is None:
        images = torch.from_numpy(train).to(device).float() / 255
        labels = torch.zeros(len(images), dtype=torch.int64, device=device)
        model, card = fit_openly(method, images, labels, batch=256, steps=method.steps), None
    else:
        # As in the paper the labels stay out of it.
        private = PrivateImages.from_arrays(train)
        release = method.fit(private, Budget(task.epsilon, DELTA), device=task.device)
        model, card = release.model, release.card  # type: ignore[assignment]
    seconds = time.perf_counter() - start
    return {
        "form": task.form,
        "data": "fashion-mnist-unlabelled",
        "epsilon": task.epsilon,
        "card_epsilon": card and card.epsilon,
        "run": task.run,
        "trial": task.trial,
        "settings": task.settings,
        "parameters": method.parameters(),
        "seconds": seconds,
        "codes": code_measures(model.to(device), method, pixels_of(task.folder, "test")),
    }


def trials(form: str) -> Iterator[dict[str, Any]]:
    """Four settings for each form: two rates of learning by two of what else it hangs on."""
    rates = (0.0003, 0.003) if "aggregation" in form else (0.003, 0.01)  # those two drown in noise
    others: dict[str, list[dict[str, Any]]] = {
        "linearised": [{"alpha": 3000.0}, {"alpha": 30000.0}],
        # The second has about the paper's share of the groups in the noise.
        "grouped": [{"group_clip_norm": 0.003}, {"group_clip_norm": 0.03}],
    }
    for rate, other in itertools.product(rates, others.get(form, [{"clip_norm": 1.0}, {"clip_norm": 100.0}])):
        yield {"learning_rate": rate, **other, "steps": TRIAL_STEPS}


def run_sparse(options: argparse.Namespace) -> None:
    given = dict(text.split("=", 1) for text in options.set)
    threads = max(1, torch.get_num_threads() // options.together)
    forms = [form for form in FORMS if not options.form or form in options.form]
    kept = options.out / "results.json"
    results: list[dict[str, Any]] = json.loads(kept.read_text())["results"] if kept.exists() else []

    def task(form: str, epsilon: float | None, run: int, settings: dict[str, Any], trial: bool = False) -> Task:
        return Task(form, epsilon, run, {**settings, **given}, trial, options.data, options.device, threads)

    def work(pool: ProcessPoolExecutor, tasks: list[Task]) -> None:
        done = [(r["form"], r["epsilon"], r["run"], r["trial"], r["parameters"]) for r in results]
        for ended in as_completed([pool.submit(judge, one) for one in tasks if one.name not in done]):
            results.append(ended.result())
            print(json.dumps(results[-1], ensure_ascii=False), flush=True)
            report = {
                "notice": NOTICE,
                "method": PRIVAE.name,
                "measures": ["codes"],
                "command": "python benchmarks/privae.py sparse",
                "machine": machine(),
                "torch": torch.__version__,
                "results": results,
            }
            kept.write_text(json.dumps(report, indent=1, ensure_ascii=False))

    with ProcessPoolExecutor(options.together, mp_context=get_context("spawn")) as pool:
        work(pool, [task(form, TRIAL_EPSILON, 0, setting, True) for form in forms for setting in trials(form)])
        tried = [result for result in results if result["trial"]]
        best = {form: min((r for r in tried if r["form"] == form), key=objective)["settings"] for form in forms}
        best = {form: {key: value for key, value in best[form].items() if key != "steps"} for form in forms}
        tasks = []
        for run in range(options.runs):
            tasks += [task(form, epsilon, run, best[form]) for epsilon in options.epsilon for form in forms]
            tasks += [task(form, None, run, {}) for form in OPEN if not options.form or form in options.form]
        work(pool, tasks)
    print(table(results))


def objective(result: dict[str, Any]) -> float:
    """What training lowers, on test images, with one α for all forms: the trials are ranked by it."""
    return float(SPARSE.alpha * result["codes"]["MMD"] - result["codes"]["log-likelihood"])


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3g}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4g}{deviation}"


def table(results: list[dict[str, Any]]) -> str:
    """A line for each form, ε and setting: mean ± standard deviation over its trainings."""
    lines = []
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        kind = "trial" if result["trial"] else "runs"
        name = f"{kind} | {result['form']} | {result['epsilon'] or '∞'} | {json.dumps(result['settings'])}"
        groups.setdefault(name, []).append(result)
    for name, own in sorted(groups.items()):
        cells = " | ".join(spread([r["codes"][metric] for r in own]) for metric in (*METRICS, "sparsity of draws"))
        score = statistics.fmean(objective(r) for r in own)
        lines.append(
            f"| {name} | {len(own)} | {cells} | {score:.1f} | {statistics.fmean(r['seconds'] for r in own):.0f} s |"
        )
    head = "| | form | ε | settings | runs | sparsity | MMD² | log-likelihood | of draws | objective | time |"
    priors = {"the sparse prior": SPARSE.code_prior(), "a normal distribution": StandardNormal(SPARSE.latent_dim)}
    known = [f"Draws of {name} have a sparsity of {hoyer(prior.draw(20_000)):.3f}." for name, prior in priors.items()]
    return "\n".join([head, "|---" * 11 + "|", *lines, *known])


def run_draw(options: argparse.Namespace) -> None:
    from matplotlib import pyplot

    results = json.loads(options.results.read_text())["results"]
    print(table(results))
    results = [result for result in results if not result["trial"]]
    titles = {"sparsity": "Hoyer sparsity", "log-likelihood": "log-likelihood (nats)", "MMD": "MMD² of q(z) and p(z)"}
    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.2))
    forms = list(dict.fromkeys(r["form"] for r in results))
    for axis, metric in zip(axes, titles, strict=True):
        for number, form in enumerate(sorted(forms)):
            own = [r for r in results if r["form"] == form]
            levels = sorted({r["epsilon"] for r in own if r["epsilon"]})
            if levels:
                values = [[r["codes"][metric] for r in own if r["epsilon"] == level] for level in levels]
                mean = np.array([statistics.fmean(v) for v in values])
                deviation = np.array([statistics.stdev(v) if len(v) > 1 else 0.0 for v in values])
                axis.plot(levels, mean, marker="o", label=form, color=f"C{number}")
                axis.fill_between(levels, mean - deviation, mean + deviation, alpha=0.2, color=f"C{number}")
            else:
                mean_open = statistics.fmean(r["codes"][metric] for r in own)
                axis.axhline(mean_open, linestyle="--", label=form, color=f"C{number}")
        axis.set_xscale("log")
        axis.set_xlabel("ε")
        axis.set_title(titles[metric])
    axes[2].set_yscale("log")
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=4, fontsize=8)
    figure.savefig(options.out / "sparse.png", dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    wheel = commands.add_parser("pinwheel")
    wheel.add_argument("--epsilon", type=float, default=2.87)
    wheel.set_defaults(command=run_pinwheel)
    sparse = commands.add_parser("sparse")
    sparse.add_argument("--data", required=True)
    sparse.add_argument("--epsilon", action="append", type=float, required=True)
    sparse.add_argument("--together", type=int, default=1, help="trainings that share the device")
    sparse.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    sparse.set_defaults(command=run_sparse)
    for one in (wheel, sparse):
        one.add_argument("--runs", type=int, default=5)
        one.add_argument("--form", action="append", default=[], help="only this form")
        one.add_argument("--set", action="append", default=[], help="a parameter of the method: steps=200")
    draw = commands.add_parser("draw")
    draw.add_argument("--results", type=Path, required=True)
    draw.set_defaults(command=run_draw)
    for one in (wheel, sparse, draw):
        one.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.command(options)


if __name__ == "__main__":
    main()

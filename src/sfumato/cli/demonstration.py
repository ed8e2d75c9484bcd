"""What ``sfumato demo`` does: plan, fit, sample, export and evaluate, with an explanation of each part."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from sfumato.cli.console import ProgressBar
from sfumato.data import Images, PrivateImages, read
from sfumato.data.digits import draw_digits
from sfumato.data.holdout import HoldOut
from sfumato.files import private_folder, write_json
from sfumato.methods.base import Method
from sfumato.methods.dp_mixture import DPMixture
from sfumato.privacy import Budget, Plan
from sfumato.release import Release, SyntheticImages
from sfumato.release.export import export
from sfumato.training.run import RunOptions, train_run

DIGITS = 10_000
SYNTHETIC = 1_000
_TEST_SHARE = 0.2
_TEST_AT_MOST = 5_000
_TRAIN_AT_MOST = 10_000


@dataclass(frozen=True)
class Outcome:
    """Accuracies in 0..1 on images that were not trained on. They are computed from real data and NOT private."""

    synthetic: float
    private: float


def best_method() -> Method:
    """DP-Mixture, which learns from ten thousand small images in seconds."""
    return DPMixture()


def run_demo(
    out: str | Path,
    *,
    data: Images | str | Path | None = None,
    epsilon: float = 10.0,
    delta: float = 1e-5,
    seed: int = 1,
    method: Method | None = None,
    console: Console,
) -> Outcome:
    """Write ``out``: release/, synthetic/, ledger.jsonl, and internal/ with what is not private.

    Args:
        out: A new or empty folder.
        data: The user's own collection, as a path or already read; without it digits are drawn.
        epsilon: The budget's ε.
        delta: The budget's δ.
        seed: Of the drawn digits; the noise comes from the operating system.
        method: The method to train instead of the best one for the drawn digits.
        console: Where the explanation is printed.

    Returns:
        The accuracies that were measured.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} is not empty; name a new folder with --out, or remove this one")
    started = time.monotonic()
    train, test = _collections(data, seed=seed, console=console)
    budget = Budget(epsilon=epsilon, delta=delta, unit="image" if train.persons is None else "person")
    method = method or best_method()
    plan = _planned(method, budget, console)
    release = _fit(method, PrivateImages.from_images(train), plan, out, console)
    synthetic = release.sample(SYNTHETIC)
    _write(synthetic, out, console)
    outcome = _evaluate(synthetic, train, test, out, drawn=data is None, console=console)
    console.print(f"\n[dim]That took {time.monotonic() - started:.0f} seconds.[/dim]")
    return outcome


def _collections(data: Images | str | Path | None, *, seed: int, console: Console) -> tuple[Images, Images]:
    """The private collection, and images that are held out to test on."""
    console.rule("[bold]1 · A private collection")
    if data is None:
        console.print(
            f"Suppose that {DIGITS:,} people each gave you one picture of a digit, in confidence. Such pictures are "
            "drawn now, in 22 typefaces, slanted, stretched, blurred and noisy. What is released later depends on "
            "them through noisy answers only."
        )
        return draw_digits(DIGITS, seed=seed), draw_digits(2_000, seed=seed + 1)
    images = data if isinstance(data, Images) else read(data)
    shape = "×".join(str(side) for side in images.pixels.shape[1:])
    console.print(
        f"Your collection: images of {shape} (channels × height × width) in {len(images.classes)} classes. How many "
        "there are is private, so it is not shown. About a fifth, chosen at random, is held out to test on."
    )
    return HoldOut.drawn(_TEST_SHARE).split(images)


def _planned(method: Method, budget: Budget, console: Console) -> Plan:
    console.rule("[bold]2 · What it will spend, before any data is used")
    plan = method.plan(budget)
    console.print(
        f"The budget is ε = {budget.epsilon:g}, δ = {budget.delta:g}, for each {budget.unit}. The method "
        f"[bold]{method.name}[/bold] makes {len(plan.events)} kinds of queries; the noise is calibrated so that "
        f"together they spend ε = {plan.epsilon:.3f}, and not more:"
    )
    table = Table("query", "times", "noise multiplier", box=None, padding=(0, 3, 0, 2))
    for event in plan.events:
        table.add_row(event.name, str(event.steps), f"{event.noise_multiplier:.3g}")
    console.print(table)
    return plan


def _fit(method: Method, private: PrivateImages, plan: Plan, out: Path, console: Console) -> Release:
    console.rule("[bold]3 · Training")
    console.print(
        "Each answer is a sum in which one image counts for little, plus noise that hides that little. Every answer "
        "is written to the ledger before it is given. What is computed from the answers spends nothing more."
    )
    with ProgressBar() as progress:
        release = train_run(out, method, private, plan, RunOptions(progress=progress))
    card = release.card
    console.print(Panel(card.explained, title=f"[bold]{card.guarantee}[/bold]: ε = {card.epsilon}", width=100))
    return release


def _write(synthetic: SyntheticImages, out: Path, console: Console) -> None:
    console.rule(f"[bold]4 · {SYNTHETIC:,} synthetic images")
    export(synthetic, out / "synthetic", format="folder")
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_row(str(out / "synthetic" / "samples.png"), "a sheet of samples to look at first")
    table.add_row(str(out / "synthetic"), f"{SYNTHETIC:,} labelled images with their card: may be published")
    table.add_row(str(out / "release"), "the generator and its card (open card.html): may be published")
    table.add_row(str(out / "ledger.jsonl"), "what was asked of the collection: internal")
    console.print(table)


def _evaluate(
    synthetic: SyntheticImages, train: Images, test: Images, out: Path, *, drawn: bool, console: Console
) -> Outcome:
    console.rule("[bold]5 · How useful they are")
    random = np.random.default_rng(0)
    rows = random.permutation(len(train.labels))[:_TRAIN_AT_MOST]
    checked = random.permutation(len(test.labels))[:_TEST_AT_MOST]
    held_out = (test.pixels[checked], test.labels[checked])
    outcome = Outcome(
        synthetic=_accuracy(synthetic.images, synthetic.labels, *held_out),
        private=_accuracy(train.pixels[rows], train.labels[rows], *held_out),
    )
    tested = "freshly drawn digits" if drawn else "the images that were held out"
    console.print(f"Accuracy of a logistic regression on {tested}:")
    table = Table("trained on", "accuracy", box=None, padding=(0, 3, 0, 2))
    table.add_row("the synthetic images", f"[bold]{outcome.synthetic:.1%}[/bold]")
    table.add_row("the private images", f"{outcome.private:.1%}")
    table.add_row("nothing (always the most frequent class)", f"{_most_frequent(held_out[1]):.1%}")
    console.print(table)
    console.print("[yellow]These numbers are computed from real images: they are NOT private. Keep them internal.[/]")
    report = {"NOT PRIVATE": True, "tested on": tested, "synthetic": outcome.synthetic, "private": outcome.private}
    write_json(private_folder(out / "internal") / "evaluation.json", report, private=True)
    return outcome


def _accuracy(pixels: np.ndarray, labels: np.ndarray, test_pixels: np.ndarray, test_labels: np.ndarray) -> float:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(labels)) < 2 or not len(test_labels):
        return float("nan")
    model = LogisticRegression(C=0.01, max_iter=200)
    with warnings.catch_warnings():
        # A few iterations more or less do not change what the number says.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(pixels.reshape(len(pixels), -1) / np.float32(255), labels)
    return float(model.score(test_pixels.reshape(len(test_pixels), -1) / np.float32(255), test_labels))


def _most_frequent(labels: np.ndarray) -> float:
    return float(np.bincount(labels).max() / len(labels)) if len(labels) else float("nan")

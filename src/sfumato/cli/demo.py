"""``sfumato demo``: plan, fit, sample, export and evaluate on drawn digits, with an explanation of each part."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from sfumato.cli.console import ProgressBar
from sfumato.cli.console import console as terminal

if TYPE_CHECKING:
    import numpy as np

    from sfumato.methods import Method

# Torch is imported where it is used: ``sfumato --help`` need not wait for it.

DIGITS, TESTED, SYNTHETIC = 10_000, 2_000, 1_000


def demo(
    *,
    out: Annotated[Path, typer.Option(help="A new folder for everything the demo makes.")],
    epsilon: Annotated[float, typer.Option(help="The ε that may be spent.")] = 10.0,
    delta: Annotated[float, typer.Option(help="The δ of the guarantee.")] = 1e-5,
) -> None:
    """From a private collection to synthetic images with a guarantee, in minutes."""
    run_demo(out, epsilon=epsilon, delta=delta, console=terminal)


def run_demo(
    out: Path, *, epsilon: float = 10.0, delta: float = 1e-5, method: Method | None = None, console: Console
) -> None:
    """Write ``out``: release/, synthetic/, ledger.jsonl, and internal/ with what is not private."""
    from sfumato.data import PrivateImages
    from sfumato.data.digits import draw_digits
    from sfumato.files import private_folder, write_json
    from sfumato.methods.dp_mixture import DPMixture
    from sfumato.privacy import Budget
    from sfumato.release.export import export
    from sfumato.training.run import RunOptions, train_run

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} is not empty; name a new folder with --out, or remove this one")
    started = time.monotonic()
    console.rule("[bold]1 · A private collection")
    console.print(
        f"Suppose that {DIGITS:,} people each gave you one picture of a digit, in confidence. Such pictures are "
        "drawn now, in 22 typefaces, slanted, stretched, blurred and noisy. What is released later depends on "
        "them through noisy answers only."
    )
    train, test = draw_digits(DIGITS, seed=1), draw_digits(TESTED, seed=2)

    console.rule("[bold]2 · What it will spend, before any data is used")
    method = method or DPMixture()
    plan = method.plan(Budget(epsilon, delta))
    console.print(
        f"The budget is ε = {epsilon:g}, δ = {delta:g}, for each image. The method [bold]{method.name}[/bold] makes "
        f"{len(plan.events)} kinds of queries; the noise is calibrated so that together they spend ε = "
        f"{plan.epsilon:.3f}, and not more:"
    )
    table = Table("query", "times", "noise multiplier", box=None, padding=(0, 3, 0, 2))
    for event in plan.events:
        table.add_row(event.name, str(event.steps), f"{event.noise_multiplier:.3g}")
    console.print(table)

    console.rule("[bold]3 · Training")
    console.print(
        "Each answer is a sum in which one image counts for little, plus noise that hides that little. Every answer "
        "is written to the ledger before it is given. What is computed from the answers spends nothing more."
    )
    with ProgressBar() as progress:
        release = train_run(out, method, PrivateImages.from_images(train), plan, RunOptions(progress=progress))
    card = release.card
    console.print(Panel(card.explained, title=f"[bold]{card.guarantee}[/bold]: ε = {card.epsilon}", width=100))

    console.rule(f"[bold]4 · {SYNTHETIC:,} synthetic images")
    synthetic = release.sample(SYNTHETIC)
    export(synthetic, out / "synthetic", format="folder")
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_row(str(out / "synthetic" / "samples.png"), "a sheet of samples to look at first")
    table.add_row(str(out / "synthetic"), f"{SYNTHETIC:,} labelled images with their card: may be published")
    table.add_row(str(out / "release"), "the generator and its card (open card.html): may be published")
    table.add_row(str(out / "ledger.jsonl"), "what was asked of the collection: internal")
    console.print(table)

    console.rule("[bold]5 · How useful they are")
    own = _accuracy(synthetic.images, synthetic.labels, test.pixels, test.labels)
    private = _accuracy(train.pixels, train.labels, test.pixels, test.labels)
    console.print("Accuracy of a logistic regression on freshly drawn digits:")
    table = Table("trained on", "accuracy", box=None, padding=(0, 3, 0, 2))
    table.add_row("the synthetic images", f"[bold]{own:.1%}[/bold]")
    table.add_row("the private images", f"{private:.1%}")
    console.print(table)
    console.print("[yellow]These numbers are computed from real images: they are NOT private. Keep them internal.[/]")
    report = {"NOT PRIVATE": True, "tested on": "freshly drawn digits", "synthetic": own, "private": private}
    write_json(private_folder(out / "internal") / "evaluation.json", report, private=True)
    console.print(f"\n[dim]That took {time.monotonic() - started:.0f} seconds.[/dim]")


def _accuracy(pixels: np.ndarray, labels: np.ndarray, test_pixels: np.ndarray, test_labels: np.ndarray) -> float:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=0.01, max_iter=200)
    with warnings.catch_warnings():
        # A few iterations more or less do not change what the number says.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(pixels.reshape(len(pixels), -1) / 255.0, labels)
    return float(model.score(test_pixels.reshape(len(test_pixels), -1) / 255.0, test_labels))

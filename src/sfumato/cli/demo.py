"""The product in two minutes: a private collection goes in, labelled synthetic images with a card come out."""

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
from sfumato.files import private_folder, write_json
from sfumato.methods import DPMERF
from sfumato.methods.base import Method
from sfumato.privacy import Budget
from sfumato.release import Release, SyntheticImages
from sfumato.release.export import export
from sfumato.release.image_grid import grid

DIGITS = 10_000
SYNTHETIC = 1_000
_TEST_SHARE = 0.2
_TEST_AT_MOST = 5_000
_TRAIN_AT_MOST = 10_000


@dataclass(frozen=True)
class Outcome:
    """Accuracies in 0..1 on pictures that nobody trained on. They look at real data and are NOT private."""

    synthetic: float
    private: float


def best_method() -> Method:
    """The best certified method for ten thousand small grey pictures, two cores and two minutes.

    DP-LFlow learns a model for each class, for which a thousand pictures of each and this little time are not enough.
    """
    return DPMERF(features=1000, iterations=800, batch_size=100, learning_rate=0.002, length_scale=5.0)


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
    """Writes ``out``: release/, synthetic/, samples.png, ledger.jsonl, and internal/ with what may not leave.

    ``data`` is the user's own collection, as a path or already read; without it digits are drawn. ``seed`` decides
    the drawn digits and the choice of test pictures; the noise always comes from the operating system.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} is not empty; name a new folder for the demo, or remove this one")
    started = time.monotonic()
    train, test = _collections(data, seed=seed, console=console)
    budget = Budget(epsilon=epsilon, delta=delta, unit="image" if train.persons is None else "person")
    method = method or best_method()
    _tell_plan(method, budget, console)
    out.mkdir(parents=True, exist_ok=True)
    release = _fit(method, PrivateImages.from_images(train), budget, out / "ledger.jsonl", console)
    drawn = release.sample(SYNTHETIC)
    _write(release, drawn, out, console)
    outcome = _judge(drawn.images, drawn.labels, train, test, out, drawn=data is None, console=console)
    console.print(f"\n[dim]That took {time.monotonic() - started:.0f} seconds.[/dim]")
    return outcome


def _collections(data: Images | str | Path | None, *, seed: int, console: Console) -> tuple[Images, Images]:
    """The private collection, and pictures that stay out of it to test on."""
    console.rule("[bold]1 · A private collection")
    if data is None:
        console.print(
            f"Imagine {DIGITS:,} people each gave you one picture of a digit, in confidence. We draw such pictures "
            "now, in 22 typefaces, slanted, stretched, blurred and noisy. Whatever we give away later may "
            "depend on them through one door only: it answers questions, with noise added."
        )
        return draw_digits(DIGITS, seed=seed), draw_digits(2_000, seed=seed + 1)
    images = data if isinstance(data, Images) else read(data)
    shape = "×".join(str(side) for side in images.pixels.shape[1:])
    console.print(
        f"Your collection: pictures of {shape} (channels × height × width) in {len(images.classes)} classes. How many "
        "there are is private, so it is not shown. About a fifth, chosen by coins, stays out to test on."
    )
    random = np.random.default_rng(seed)
    # A coin for each person or picture of its own: nobody's place depends on who else is there.
    owners = np.arange(len(images.labels)) if images.persons is None else images.persons
    held = (random.random(int(owners.max()) + 1) < _TEST_SHARE)[owners]
    return _part(images, ~held), _part(images, held)


def _part(images: Images, rows: np.ndarray) -> Images:
    persons = None
    if images.persons is not None:
        persons = np.unique(images.persons[rows], return_inverse=True)[1].astype(np.int64)
    return Images(images.pixels[rows], images.labels[rows], images.classes, persons)


def _tell_plan(method: Method, budget: Budget, console: Console) -> None:
    console.rule("[bold]2 · What it will cost, before anything is touched")
    plan = method.plan(budget)
    console.print(
        f"Privacy is a budget: ε = {budget.epsilon:g}, δ = {budget.delta:g}, for each {budget.unit}. The method "
        f"[bold]{method.name}[/bold] will ask {len(plan.events)} kinds of questions; the noise is set so that together "
        f"they cost ε = {plan.epsilon:.3f}, and not more:"
    )
    table = Table("question", "times", "noise σ", box=None, padding=(0, 3, 0, 2))
    for event in plan.events:
        table.add_row(event.name, str(event.steps), f"{event.noise_multiplier:.3g}")
    console.print(table)


def _fit(method: Method, private: PrivateImages, budget: Budget, ledger: Path, console: Console) -> Release:
    console.rule("[bold]3 · Learning through the door")
    console.print(
        "Each answer is a sum to which one picture adds little, plus noise that hides that little. Every answer is "
        "written into a ledger before it is given. What follows from the answers costs nothing more."
    )
    with ProgressBar() as progress:
        release = method.fit(private, budget, ledger, progress=progress)
    card = release.card
    console.print(Panel(card.sentence, title=f"[bold]{card.guarantee}[/bold]: ε = {card.epsilon}", width=100))
    return release


def _write(release: Release, drawn: SyntheticImages, out: Path, console: Console) -> None:
    images, labels = drawn
    console.rule(f"[bold]4 · {SYNTHETIC:,} pictures of nobody")
    release.save(out / "release")
    export(drawn, out / "synthetic", format="folder")
    order = np.argsort(labels, kind="stable")
    each = [order[labels[order] == number][:10] for number in range(min(10, len(release.classes)))]
    grid(images[np.concatenate(each)], columns=10, scale=max(1, 84 // images.shape[-1])).save(out / "samples.png")
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_row(str(out / "samples.png"), "a first look")
    table.add_row(str(out / "synthetic"), f"{SYNTHETIC:,} labelled pictures, the card beside them: may leave")
    table.add_row(str(out / "release"), "the generator and its card (open card.html): may leave")
    table.add_row(str(out / "ledger.jsonl"), "what was asked of the collection")
    console.print(table)


def _judge(
    images: np.ndarray, labels: np.ndarray, train: Images, test: Images, out: Path, *, drawn: bool, console: Console
) -> Outcome:
    console.rule("[bold]5 · Are they any use?")
    random = np.random.default_rng(0)
    rows = random.permutation(len(train.labels))[:_TRAIN_AT_MOST]
    checked = random.permutation(len(test.labels))[:_TEST_AT_MOST]
    exam = (test.pixels[checked], test.labels[checked])
    outcome = Outcome(
        synthetic=_accuracy(images, labels, *exam), private=_accuracy(train.pixels[rows], train.labels[rows], *exam)
    )
    tested = "freshly drawn digits" if drawn else "the pictures that stayed out"
    console.print(f"The same simple classifier (logistic regression), trained twice and tested on {tested}:")
    table = Table("trained on", "right", box=None, padding=(0, 3, 0, 2))
    table.add_row("the synthetic pictures", f"[bold]{outcome.synthetic:.1%}[/bold]")
    table.add_row("the private pictures", f"{outcome.private:.1%}")
    table.add_row("guessing the commonest class", f"{_commonest(exam[1]):.1%}")
    console.print(table)
    console.print("[yellow]These three numbers look at real pictures: they are NOT private. Keep them inside.[/yellow]")
    internal = private_folder(out / "internal")
    report = {"NOT PRIVATE": True, "tested on": tested, "synthetic": outcome.synthetic, "private": outcome.private}
    write_json(internal / "evaluation.json", report, private=True)
    return outcome


def _accuracy(pixels: np.ndarray, labels: np.ndarray, test_pixels: np.ndarray, test_labels: np.ndarray) -> float:
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise ImportError("the demo's classifier needs scikit-learn: pip install 'sfumato[eval]'") from None
    if len(np.unique(labels)) < 2 or not len(test_labels):
        return float("nan")
    model = LogisticRegression(C=0.01, max_iter=200)
    with warnings.catch_warnings():
        # A few iterations more or less do not change what the number says.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(pixels.reshape(len(pixels), -1) / np.float32(255), labels)
    return float(model.score(test_pixels.reshape(len(test_pixels), -1) / np.float32(255), test_labels))


def _commonest(labels: np.ndarray) -> float:
    return float(np.bincount(labels).max() / len(labels)) if len(labels) else float("nan")

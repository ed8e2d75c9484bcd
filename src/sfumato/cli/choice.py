"""What ``sfumato train`` decides and says before a training: method, expected use, statements for the card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfumato.cli.console import remark, warn
from sfumato.cli.options import BudgetOptions, MethodOptions

if TYPE_CHECKING:
    from sfumato.data import Images
    from sfumato.experiments.expected_use import PublicFacts
    from sfumato.methods import Method
    from sfumato.privacy import AnyBudget


def check_choosable(parameters: MethodOptions, budget: BudgetOptions) -> None:
    """Refuse what only makes sense together with --method."""
    if budget.no_guarantee:
        raise ValueError("--no-guarantee: name the method with --method; only certified ones are chosen automatically")
    if parameters.values() or parameters.variant != "certified":
        raise ValueError("--set, --steps, --sampling-rate and --variant belong to a method: name it with --method")


def public_facts(images: Images, budget: AnyBudget, declared_size: int | None) -> PublicFacts | None:
    """Shape, label set, declared number and budget: what may decide about a method. None without a guarantee.

    The declared number counts units, so that persons are compared with persons. The number of images in the collection
    is private and is not looked at.
    """
    from sfumato.experiments.expected_use import PublicFacts
    from sfumato.experiments.planning import ASSUMED_IMAGES
    from sfumato.privacy import Budget

    if not isinstance(budget, Budget):
        return None
    channels, height, width = images.pixels.shape[1:]
    return PublicFacts(
        images=declared_size or ASSUMED_IMAGES,
        size=max(height, width),
        channels=channels,
        classes=len(images.classes),
        epsilon=budget.epsilon,
        delta=budget.delta,
    )


def choose(facts: PublicFacts | None, *, device: str, time_limit: float) -> str:
    """The name of the method for these facts; the reason goes to standard error."""
    from sfumato.experiments.planning import choose_method

    if facts is None:
        raise ValueError("choose a method with --method; 'sfumato methods' lists them")
    choice = choose_method(facts, device=device, time_limit=60 * time_limit)
    remark(f"Method: {choice.why}.")
    return choice.method


def expected_use(method: Method, facts: PublicFacts | None, *, declared: bool) -> tuple[str, ...]:
    """Sentences for the card about the use of the images; a warning where there will be none.

    Without a declared number nothing is compared with the collection: the sentence says how many images are needed.
    """
    from sfumato.experiments.planning import plan_method, use_needs, use_warning

    if facts is None:
        return ()
    if not declared:
        needs = use_needs(method.name, facts)
        if needs is None:
            return ()
        remark(f"{needs}. Your number is private and was not compared; 'sfumato plan --images N' says what to expect.")
        return (f"{needs}, as predicted from measurements on MNIST.",)
    warning = use_warning(method.name, facts)
    if warning is not None:
        warn(f"WARNING: expected use hopeless: {warning}. Collect more images, or choose a larger ε.")
        return (f"Expected use: hopeless; {warning}. This was predicted before the training.",)
    row = plan_method(method, facts)
    if row.expected_use is None:
        return ()
    return (f"Expected use: {row.expected_use}; {row.why}. This was predicted before the training.",)


def noted(pairs: Sequence[str]) -> dict[str, str]:
    """The statements of ``--note``.

    >>> noted(["purpose=teaching", "contact = data@example.org"])
    {'purpose': 'teaching', 'contact': 'data@example.org'}
    """
    found = {}
    for pair in pairs:
        key, separator, text = (part.strip() for part in pair.partition("="))
        if not separator or not key or not text:
            raise ValueError(f"--note takes name=text, such as --note 'purpose=teaching', not {pair!r}")
        found[key] = text
    return found

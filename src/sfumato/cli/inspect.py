"""``sfumato inspect``: what a collection holds, for internal use; ``sfumato cache``: where decoded pixels are kept."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.console import ProgressBar, print_json, print_table, say, warn
from sfumato.cli.options import Collection, Json
from sfumato.options import ReadingOptions, label_set, words

if TYPE_CHECKING:
    from sfumato.data.inspection import Inspection
    from sfumato.planning.expected_use import PublicFacts


_PATTERNS = 4
NOTICE = "INTERNAL: these are private facts about the collection. Do not publish them."


def inspect(
    data: Collection,
    *,
    public: Annotated[
        Path | None, typer.Option(help="Count the images that are also in this collection, which is to be public.")
    ] = None,
    reading: ReadingOptions,
    as_json: Json = False,
) -> None:
    """Show what a collection holds, and the command to run next. INTERNAL: everything it prints is private."""
    from sfumato.data.inspection import inspect as inspect_collection
    from sfumato.data.source import Selection

    names = label_set(reading.classes)
    selection = Selection(
        image_column=reading.image_column,
        label_column=reading.label_column,
        person_column=reading.person_column,
        person_file=reading.persons,
        person_pattern=reading.person_pattern,
        labelled=not reading.no_labels,
        classes=tuple(map(str, range(names))) if isinstance(names, int) else names,
        missing_persons=reading.missing_persons,  # type: ignore[arg-type]
        split=reading.split,
    )
    with ProgressBar() as progress:
        progress.report("reading the images", 0, 0)
        found = inspect_collection(
            data,
            selection,
            public=public,
            report=lambda done, total: progress.report("reading the images", done, total),
        )
    command = next_command(data, found, reading)
    if as_json:
        options = {
            **asdict(suggested(found, reading)),
            "persons": None if reading.persons is None else str(reading.persons),
        }
        return print_json({"notice": NOTICE, **found.to_json(), "suggested": options, "next_command": command})
    _say(found, deep_known=reading.bits is not None)
    if found.person_problem is None:
        facts = public_facts(found, reading)
        say(f"\nWhat to expect at ε 1: {expectation(facts)}.")
        say(f"More about it: {plan_command(facts)}")
        say(f"Next: {command}")
        say("--declared-size becomes public, as the label set does: give the number that you would publish.")
    return warn(NOTICE)


def suggested(found: Inspection, reading: ReadingOptions) -> ReadingOptions:
    """The options that fit what was found. Nothing is left out that the user did not say should be."""
    classes = reading.classes
    if classes is None and found.declared_classes is None and not reading.no_labels and found.labels:
        classes = _suggested_classes(found)
    return replace(
        reading,
        size=reading.size or found.suggested_size,
        colour=reading.colour or found.suggested_colour,
        classes=classes,
        internal=False,
    )


def next_command(data: Path, found: Inspection, reading: ReadingOptions) -> str | None:
    """A training command that fits what was found; none where persons are wrongly named.

    It says what it leaves out: images that cannot be read, or have no label. Nobody's images are left out for want of
    a person's name.
    """
    if found.person_problem is not None:
        return None
    fitting = replace(
        suggested(found, reading),
        skip_bad=reading.skip_bad or found.bad_images > 0,
        missing_labels="leave out" if found.unlabelled and not reading.no_labels else reading.missing_labels,
    )
    options = (part for word in words(fitting) for part in word.split("=", 1))
    size = ["--declared-size", str(declared_size(found))]
    return shlex.join(["sfumato", "train", str(data), "--epsilon", "1", *size, "--out", "run", *options])


def declared_size(found: Inspection) -> int:
    """The number of units, rounded to two digits."""
    units = max(1, len(found.persons) or found.images)
    return int(float(f"{units:.1e}"))


def public_facts(found: Inspection, reading: ReadingOptions) -> PublicFacts:
    """What a plan at ε 1 is made for: the facts that the training is given too."""
    from sfumato.planning.expected_use import PublicFacts

    chosen = suggested(found, reading)
    sizes = [max(size) for size, _ in found.sizes.most_common(1)]
    declared = label_set(chosen.classes) or found.declared_classes or ()
    classes = 1 if chosen.no_labels else declared if isinstance(declared, int) else len(declared)
    colour = chosen.colour == "rgb" or (chosen.colour is None and "colour" in found.colours)
    return PublicFacts(
        declared_size=declared_size(found),
        size=chosen.size or next(iter(sizes), 28),
        channels=3 if colour else 1,
        classes=max(1, classes),
        epsilon=1.0,
        unit="person" if found.persons else "image",
    )


def plan_command(facts: PublicFacts) -> str:
    """The command that says more about what to expect."""
    words = ["sfumato", "plan", "--epsilon", "1", "--declared-size", str(facts.declared_size)]
    words += ["--unit", "person"] if facts.unit == "person" else []
    words += ["--size", str(facts.size), *(["--channels", "3"] if facts.channels == 3 else [])]
    return shlex.join([*words, "--classes", str(facts.classes)])


def expectation(facts: PublicFacts) -> str:
    """The method that a training takes on this machine, and what its images are good for."""
    from sfumato.cli.options import device_named
    from sfumato.planning.plan import choose_method

    choice = choose_method(facts, device=device_named("auto"))
    return choice.why if choice.plan.expected_use != "hopeless" else f"{choice.why}; {choice.plan.why}"


def _suggested_classes(found: Inspection) -> str:
    if all(name.isdecimal() for name in found.labels):
        return str(max(int(name) for name in found.labels) + 1)
    return ",".join(f'"{name}"' if "," in name else name for name in sorted(found.labels))


def _say(found: Inspection, *, deep_known: bool) -> None:
    say(f"format: {found.format}")
    if found.left_out:
        parts = (name if count is None else f"{name} ({count:,} images)" for name, count in found.left_out.items())
        say(f"parts: left out here and in a training: {', '.join(parts)}; --split reads another one")
    say(f"images: {found.images:,} that can be read, {found.bad_images:,} that cannot")
    sizes = [f"{n:,} of {h} × {w}" for (h, w), n in found.sizes.most_common(5)]
    more = len(found.sizes) - len(sizes)
    say(f"sizes (height × width): {'; '.join(sizes)}" + (f"; and {more:,} other sizes" if more > 0 else ""))
    say(f"colours: {'; '.join(f'{n:,} {name}' for name, n in found.colours.most_common())}")
    if (bits := found.suggested_bits) is not None and not deep_known:
        warn(
            f"DARK: the brightest pixel of all has {100 * found.brightest / 255:.0f} % of the largest value. If these "
            f"are {bits}-bit values in 16-bit files, as of scanners, add --bits {bits}; else images are nearly black."
        )
    _say_persons(found)
    if found.labels:
        print_table(("class", "images"), [(name, f"{count:,}") for name, count in sorted(found.labels.items())])
    if found.declared_classes is None and found.labels:
        say("The label set becomes public: declare it with --classes, also those classes that have no image.")
    if found.unlabelled:
        say(f"{found.unlabelled:,} images have no label")
    if found.shared_with_public is not None:
        say(f"images that are also in the public collection, pixel by pixel: {found.shared_with_public:,}")
    if found.shared_with_public:
        warn("These images are not public: take them out of the public collection before a training uses it.")
    for line in found.bad:
        say(f"bad: {line}")
    if found.burned_in:
        warn(f"{found.burned_in:,} DICOM files say that text is burned into the image; it may name patients. Mask it.")


def _say_persons(found: Inspection) -> None:
    if found.persons:
        most = max(found.persons.values())
        say(f"persons: {len(found.persons):,}, with up to {most:,} images each; the guarantee will hold per person")
        if found.joined_names:
            say(f"names of persons that differ in their spelling alone, and were joined: {found.joined_names:,}")
        if found.zeros:
            warn(
                f"{found.zeros:,} persons have the name of another one but for leading zeros, such as 7 and 007. They "
                "count as two persons; if they are one, write the names alike first."
            )
    elif not found.unnamed:
        say("persons: none are named; if one person can have several images, name them (--persons, --person-pattern)")
    for one in found.person_patterns[:_PATTERNS]:
        say(f"  --person-pattern {shlex.quote(one.pattern)} takes {one.sentence}")
    for text in (found.person_problem, found.person_warning):
        if text is not None:
            warn(f"PERSONS: {text}.")
    if found.person_problem is not None:
        warn("Name a person for every image (--persons FILE.csv), or say --missing-persons 'leave out'.")


def cache(
    *,
    clear: Annotated[bool, typer.Option("--clear", help="Remove what is there.")] = False,
    as_json: Json = False,
) -> None:
    """Show or clear the folder with decoded private pixels and reference statistics."""
    from sfumato.data.cache import clear_cache
    from sfumato.files import cache_folder

    folder = cache_folder()
    if clear:
        clear_cache()
        shutil.rmtree(folder / "evaluation", ignore_errors=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
    if as_json:
        print_json({"folder": str(folder), "bytes": size})
    elif clear:
        say("The cache is empty.")
    else:
        say(f"{folder}: {size / 2**20:.1f} MiB, readable by its owner alone; --clear removes it")

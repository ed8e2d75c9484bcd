"""Numbers in sentences that follow from the accountant, a network or a result file: they are computed and compared.

A function for each page yields the sentences as they should stand; an ``assert`` is a claim of the text in words.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from torch import Tensor

from finding import ROOT, Finding, failed_claim, line_of
from regions import REGION, documentation_pages
from sfumato import DP2VAE, DPPM, GSWGAN, PRIVAE, DPDiffusion, DPLFlow, Method
from sfumato.experiments.datasets import datasets
from sfumato.experiments.results import ResultRow, load_results
from sfumato.methods import find
from sfumato.networks.edm import heun
from sfumato.networks.generators import Critic
from sfumato.networks.score import hamiltonian
from sfumato.planning.costs import training_seconds
from sfumato.planning.expected_use import PublicFacts, Use, expected_share, signal_to_noise, table_rows
from sfumato.planning.plan import choose_method
from sfumato.privacy import Block, Budget, SubsampledGaussian
from sfumato.privacy.accounting import calibrate, epsilon
from sfumato.privacy.selection import calibrated_selection
from sfumato.texts import duration

DOCS = ROOT / "docs"
DELTA = 1e-5
RESULTS = load_results(DOCS / "results")


def row(file: str, setting: str, data: str, budget: float | None) -> ResultRow:
    """The one row of a result file with this setting, data and ε."""
    rows = RESULTS[file].rows
    [found] = [one for one in rows if (one.setting, one.data.name, one.epsilon) == (setting, data, budget)]
    return found


def event(noise: float, rate: float = 1.0, steps: int = 1) -> SubsampledGaussian:
    return SubsampledGaussian("train", (Block("sum", noise),), sampling_rate=rate, steps=steps)


def pitfalls() -> Iterator[str]:
    (whole,) = calibrate([event(1.0)], Budget(1.0, DELTA))
    group = epsilon([event(whole.noise_multiplier / 20)], DELTA)
    yield f"ε {group:.1f} for a printed 1 at 20 images in one noisy sum"
    together = SubsampledGaussian("step", (Block("a", 0.956), Block("b", 0.956)), sampling_rate=0.02, steps=1000)
    apart = [event(0.956, 0.02, 1000), event(0.956, 0.02, 1000)]
    yield f"ε {epsilon([together], DELTA):.2f} printed as {epsilon(apart, DELTA):.2f}"


def printed_epsilons() -> Iterator[str]:
    yield f"4.5 gives ε = {epsilon([event(4.5, 0.1, 300)], DELTA):.2f} rather than 1"
    spent = [DPLFlow.as_in_the_paper(claimed_epsilon=claimed).plan(Budget(20.0, DELTA)).epsilon for claimed in (10, 1)]
    yield f"accounts for one clip of C: ε = {spent[0]:.2f} and {spent[1]:.2f}"
    ten, three = (PRIVAE.as_in_the_paper(claimed_epsilon=claimed).plan(Budget(20.0, DELTA)) for claimed in (10, 3))
    yield f"{ten.epsilon:.1f} for a claimed 10, and {three.epsilon:.2f} for a claimed 3"
    stored = json.loads((DOCS / "results" / "case-studies.json").read_text(encoding="utf-8"))["case_studies"]
    found = {one["name"]: f"{one['measured']['epsilon']:.2f}" for one in stored}
    clips, shuffled = found["DP-LFlow's script, two clips"], found["DP-LFlow's script, shuffling"]
    yield f"the likelihood ratio finds {clips} for two clips and {shuffled} for shuffling"
    yield f"A claimed ε of 1 is at least {found['DP²-VAE, published']} after a single decoder step"
    yield f"A claimed 1 is at least {found['DPAF, published']} in one step"
    yield f"A claimed 1 is at least {found['DPPM, published']}, found from the released network alone"


def noise(method: Method, budget: float, name: str = "training") -> float:
    """The calibrated noise multiplier of a method's training."""
    return method.plan(Budget(budget, DELTA)).event(name).noise_multiplier


def front() -> Iterator[str]:
    """What README says about a laptop."""
    facts = [PublicFacts(declared_size=size, size=28, classes=10, epsilon=1.0) for size in (1000, 10_000)]
    few, many = (choose_method(fact, device="cpu").plan for fact in facts)
    assert few.expected_use is Use.ROUGH and many.expected_use is Use.GOOD and many.cpu_seconds < 60
    yield (
        f"10,000 grey images of 28×28 in ten classes take {duration(many.cpu_seconds)} of one core at ε 1, and a "
        f"classifier should reach {many.share or 0:.2f} of the accuracy that real ones give, counted from chance"
    )
    yield f"with 1,000 it is {few.share or 0:.2f}"


def expected_uses() -> Iterator[str]:
    protocols: dict[str, set[str]] = {}
    images: dict[int | None, set[str]] = {}
    for one in table_rows():
        stored = RESULTS[one["result"]].rows
        [used] = {(own.protocol, own.images) for own in stored if own.method == one["method"]}
        protocols.setdefault(used[0], set()).add(one["method"])
        if used[0] == "sinkhorn":
            images.setdefault(used[1], set()).add(one["method"])
    assert protocols.pop("dppm") == {"dppm"} and set(protocols) == {"sinkhorn"}
    assert images[10_000] == {"dp-vae", "dp-realnvp", "dpaf", "gs-wgan", "privae", "dp-mixture"}
    assert images[5000] == {"dp-mixture"} and images[1000] == {"dp-merf"}
    yield "DPPM's are by the protocol `dppm`, another CNN after 10,000 images."
    few = PublicFacts(declared_size=1500, size=28, classes=10, epsilon=8.0)
    assert choose_method(few, device="cpu").method == "dp-mixture"
    yield "For 1,500 images at ε 8 `train` prefers DP-Mixture on a CPU"
    real = row("real-faces-32-cpu", "real training data", "celeba-gender-32", None).values["CNN"].mean
    found = {}
    for budget, name in ((10, "dp2-vae-faces-cpu"), (1, "dp2-vae-faces-cpu-1")):
        facts = PublicFacts(declared_size=14_999, size=32, channels=3, classes=2, epsilon=budget)
        predicted = expected_share("dp2-vae", signal_to_noise(facts)) or 0.0
        measured = (row(name, name, "celeba-gender-32", budget).values["CNN"].mean - 50) / (real - 50)
        found[budget] = [f"{Use.of(share)} ({share:.2f})" for share in (predicted, measured)]
    yield f"DP²-VAE was predicted to be {found[10][0]} at ε 10, and two trainings measured {found[10][1]}"
    yield f"at ε 1 it was predicted to be {found[1][0]}, and one training measured {found[1][1]}"


def planned_times() -> Iterator[str]:
    trained = row("dp2-vae-faces-cpu", "dp2-vae-faces-cpu", "celeba-gender-32", 10)
    assert trained.trainings == 2 and trained.seconds is not None and trained.data.records == 14_999
    planned = training_seconds(DP2VAE(), records=14_999, values=3 * 32 * 32, device="cpu")
    yield f"they are {planned:,.0f} s on one core, and its two trainings at ε 10 took {trained.seconds:,.0f} s"


def selection() -> Iterator[str]:
    found = []
    for trials in (5, 20):
        chosen, _ = calibrated_selection([(event(1.0, 0.1, 300),)], Budget(3.0, DELTA), trials=trials)
        found.append(epsilon(list(chosen.candidates[0]), DELTA))
    yield f"costs ε = {found[0]:.2f} with five trials (the default) and {found[1]:.2f} with twenty"


def batch_losses() -> Iterator[str]:
    own, group = 0.05 / 256, 2 * 0.005 / 16
    yield f"(C1 = 0.05, B = 256, C2 = 0.005, b = 16) the noise is {(own + group) / own:.1f} times"


def lemma() -> Iterator[str]:
    together = SubsampledGaussian("step", (Block("a", 0.956), Block("b", 0.956)), sampling_rate=0.02, steps=1000)
    apart = epsilon([event(0.956, 0.02, 1000), event(0.956, 0.02, 1000)], DELTA)
    yield f"cost ε = {epsilon([together], DELTA):.2f}. Composed as if"
    yield f"they would print {apart:.2f}"


def detection() -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((DOCS / "results" / "detection-matrix.json").read_text(encoding="utf-8"))[
        "methods"
    ]
    return found


def audited() -> Iterator[str]:
    forms = Counter(one["form"] for one in detection())
    of_authors = Counter(one["caught_by"] for one in detection() if one["form"] in ("direct", "in a helper"))
    yield f"{forms['control']} control methods that are sound"
    yield f"{forms['mechanism']} ways to break the mechanism or the reading of data, and {forms['direct']} mistakes"
    refused, isolated, apart = (of_authors[name] for name in ("torch.func.vmap", "isolation", "kept apart"))
    yield (
        f"Of the {of_authors.total()} mistakes of authors torch.func.vmap refuses {refused} and the isolation "
        f"{isolated}, {apart} move no sum because rows are kept apart, replay finds {of_authors['replay']}, and "
        f"{of_authors['nothing']} are missed."
    )
    assert {one["caught_by"] for one in detection() if one["form"] == "control"} == {"nothing"}


def replayed() -> Iterator[str]:
    broken = [one for one in detection() if one["form"] != "control"]
    assert sum(one["caught_by"] == "nothing" for one in broken) == 3
    yield f"it is run on {len(broken)} broken methods"
    yield "and which three are missed"


def dp2_vae_noise() -> Iterator[str]:
    without = [noise(DP2VAE(prior_noise=0.0), budget) for budget in (10.0, 1.0)]
    yield f"--epsilon 10 --delta 1e-5 --set prior_noise=0 --json # noise multiplier {without[0]:.3f}"
    yield f"--epsilon 1 --delta 1e-5 --set prior_noise=0 --json # noise multiplier {without[1]:.3f}"
    yield f"The training's noise multiplier is then {noise(DP2VAE(), 1.0):.3f} for ε = 1."
    shard = [noise(DP2VAE(variant="shard"), budget) for budget in (10.0, 1.0)]
    yield f"{shard[0]:.2f} for ε = 10 and {shard[1]:.1f} for ε = 1 (sampling rate 0.1, 300 steps, δ = 1e-5)"
    yield f"A million records at the default settings need {4 * (2 * DP2VAE().latent_dim + 1)} MB."


def privae_noise() -> Iterator[str]:
    grouped = PRIVAE(variant="grouped", sampling_rate=0.00426666667, steps=2344)
    first, second = (f"{noise(grouped, budget):.3f}".lstrip("0") for budget in (10.0, 1.0))
    command = "sfumato plan privae --variant grouped --epsilon {} --set sampling_rate=0.00426666667 --set steps=2344"
    yield f"{command.format('10')} # noise multiplier {first}"
    yield f"{command.format('1')} # noise multiplier {second}"
    published = (PRIVAE.as_in_the_paper(claimed_epsilon=claimed).plan(Budget(20.0, DELTA)) for claimed in (10, 3, 1))
    ten, three, one = (plan.epsilon for plan in published)
    bare = calibrate([event(1.0, 0.00426666667, 2344)], Budget(1.0, DELTA))[0].noise_multiplier
    yield f"Without the label counts the second is {bare:.3f}."
    kappa = 2 * math.sqrt(math.log(DELTA / 2) / math.log(DELTA))
    yield f"κ = 2·√(log(δ/2) ÷ log δ) ≈ {kappa:.2f}"
    own, group = 0.05 / 256, 0.005 / 16
    summed = 0.5153 * kappa * math.hypot(own, group) / (own + 2 * group)
    shown = epsilon([event(summed, 256 / 60_000, 2344)], DELTA)
    yield f"Only their sum is released, for which {shown:.1f} could be shown"
    yield f"| 10 | .5153 | {ten:.1f} | | 3 | .7420 | {three:.2f} | | 1 | 1.1569 | {one:.2f} |".replace("| 0.", "| .")


def gs_wgan_noise() -> Iterator[str]:
    noises = [noise(GSWGAN(), budget) for budget in (10.0, 1.0)]
    critic = Critic((1, 28, 28), 10, width=GSWGAN().critic_width)
    yield f"{sum(weight.numel() for weight in critic.parameters()):,} weights for 28×28 pixels"
    authors = GSWGAN(variant="published", sampling_rate=0.001, steps=20_000, shards=1000, fakes=32)
    yield f"what `published` does and the ledger says | {authors.plan(Budget(25.0, DELTA)).epsilon:.1f} |"
    for noise_multiplier, answers, grid, sentence in (
        (1.07, 20_000 * 32, 1e-4, "each with a draw of its own | {:.2f} |"),
        (1.07 / 32**0.5, 20_000, 1e-3, "exactly one discriminator sampled each time: as in the paper | {:.0f} |"),
    ):
        accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=grid)
        sampled = PoissonSampledDpEvent(1 / 1000, GaussianDpEvent(noise_multiplier))
        cost = accountant.compose(SelfComposedDpEvent(sampled, answers)).get_epsilon(DELTA)
        yield sentence.format(cost if cost < 100 else math.ceil(cost))
    yield f"{noises[0]:.2f} for ε = 10 at the default sampling rate of 0.1 and 200 steps, {noises[1]:.1f} for ε = 1"


def dp_diffusion_noise() -> Iterator[str]:
    latent, alone = (replace(DPDiffusion(), steps=300, warm_start=start) for start in ("latent", "procedural"))
    yield f"with shares of {latent.teacher_share:g} and {latent.latent_share:g} at ε = 10"
    yield f"from {noise(alone, 10.0):.3f} to {noise(latent, 10.0):.3f} at 300 steps"


def dp_lflow_claims() -> Iterator[str]:
    for budget in (10.0, 1.0):
        command = f"sfumato plan dp-lflow --epsilon {budget:g} --delta 1e-5 --sampling-rate 0.1 --steps 300 --json"
        yield f"{command} # noise multiplier {noise(DPLFlow(), budget):.3f}"
    bare = [calibrate([event(1.0, 0.1, 300)], Budget(budget, DELTA))[0].noise_multiplier for budget in (10.0, 1.0)]
    yield f"Without counts and label filter they are {bare[0]:.3f} and {bare[1]:.3f}."
    once = [epsilon([event(noise, 0.1, 300)], DELTA) for noise in (1.25, 4.5)]
    yield f"1.25 gives {once[0]:.1f} and 4.5 gives {once[1]:.2f}"
    spent = [DPLFlow.as_in_the_paper(claimed_epsilon=claimed).plan(Budget(20.0, DELTA)).epsilon for claimed in (10, 1)]
    yield f"That is ε = {spent[0]:.2f} for the claimed 10 and {spent[1]:.2f} for the claimed 1"


def dpaf_noise() -> Iterator[str]:
    sums: dict[float, list[str]] = {}
    (joint,) = calibrate([event(1.0, 0.02, 1000)], Budget(10.0, DELTA))
    yield f"gives the joint noise multiplier {joint.noise_multiplier:.3f}, whatever the share"
    for budget in (10.0, 1.0):
        for rate, steps in ((1.0, 1), (0.1, 300), (0.02, 1000)):
            (one,) = calibrate([event(1.0, rate, steps)], Budget(budget, DELTA))
            sums.setdefault(budget, []).append(f"{one.noise_multiplier / (rate * steps**0.5):.2f}")
    first, second, third = sums[10.0]
    yield (
        f"At ε = 10 this is {first} for one query to all units, {second} for q = 0.1 and T = 300, and {third} for "
        f"q = 0.02 and T = 1000; at ε = 1 it is {sums[1.0][0]}, {sums[1.0][1]} and {sums[1.0][2]}."
    )


def _shown(default: bool | str | float) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return default if isinstance(default, str) else f"{default:g}"


def dppm_networks() -> Iterator[str]:
    text = (DOCS / "reference" / "methods" / "dppm.md").read_text(encoding="utf-8").split("## Parameters")[1]
    defaults = {**find("dppm-published")().parameters(), **DPPM().parameters()}
    for line in re.findall(r"^\| `.*", text, re.MULTILINE):
        names, values = line.strip("| ").split(" | ")[:2]
        known = [defaults[name] for name in re.findall(r"`(\w+)`", names)]
        stated = values.replace("−", "-").replace("10,000", "10000").split(", ")
        assert stated == [_shown(one) for one in known], line
    model = DPPM().build((1, 28, 28), 10)
    parts = {type(part).__name__: part for part in model.children()}
    count = {name: sum(weight.numel() for weight in part.parameters()) for name, part in parts.items()}
    yield f"{count['ScoreNetwork'] / 1e6:.2f} M parameters at 28×28"
    yield f"{count['LabelFilter']:,} parameters"
    calls = {"heun": 0, "hamiltonian": 0}

    def counted(name: str) -> Callable[[Tensor, Tensor], Tensor]:
        def field(images: Tensor, sigma: Tensor) -> Tensor:
            calls[name] += 1
            return images

        return field

    start = torch.zeros(1, 1, 2, 2)
    heun(counted("heun"), start, [float(level) for level in range(DPPM().sampling_steps, 0, -1)])
    hamiltonian(
        counted("hamiltonian"),
        start,
        [float(level) for level in range(20, 0, -1)],
        leapfrog_steps=DPPM().leapfrog_steps,
        step_size=0.5,
        momentum_distribution="gaussian",
        metropolis=True,
    )
    yield (
        f"{calls['heun']} network evaluations for {DPPM().sampling_steps} levels, where Hamiltonian dynamics with 20 "
        f"levels takes {calls['hamiltonian']}"
    )


def faces() -> Iterator[str]:
    known = datasets()
    gender, large = known["celeba-gender-64"], known["celeba-gender-128"]
    trained, tested = re.findall(r"\d+", gender.split)
    yield f"{gender.records:,} training images of {trained} persons and 2,477 test images of {tested} others"
    yield f"{known['celeba-hair-64'].records:,} of the training images have black, blond or brown hair"
    yield f"{large.records:,} training images of {re.findall('[0-9]+', large.split)[0]} persons"


SENTENCES: dict[str, Callable[[], Iterator[str]]] = {
    "../README.md": front,
    "explanation/engine.md": batch_losses,
    "explanation/private-selection.md": selection,
    "how-to/choose.md": planned_times,
    "results/expected-use.md": expected_uses,
    "explanation/lemma.md": lemma,
    "explanation/pitfalls.md": pitfalls,
    "reference/audits.md": replayed,
    "how-to/reproduce.md": faces,
    "explanation/five-printed-epsilons.md": printed_epsilons,
    "reference/methods/dp-diffusion.md": dp_diffusion_noise,
    "reference/methods/dp-lflow.md": dp_lflow_claims,
    "reference/methods/dp2-vae.md": dp2_vae_noise,
    "reference/methods/dpaf.md": dpaf_noise,
    "reference/methods/dppm.md": dppm_networks,
    "reference/methods/gs-wgan.md": gs_wgan_noise,
    "reference/methods/privae.md": privae_noise,
    "results/audits.md": audited,
}


def wrong_sentences(page: str) -> tuple[list[Finding], list[str]]:
    """What a page should say and does not, and all sentences that were computed for it."""
    path, computed = (DOCS / page).resolve(), list[str]()
    text = path.read_text(encoding="utf-8")
    found = list(failed_claim(path, lambda: computed.extend(SENTENCES[page]())))
    for sentence in computed:
        if sentence not in " ".join(text.split()):
            found.append(Finding(path, line_of(text, " ".join(sentence.split()[:2])), f"it should say: {sentence}"))
    return found, computed


def of_page(page: str) -> list[Finding]:
    """Wrong numbers in the sentences of a page, and numbers with a unit that nothing computes."""
    found, computed = wrong_sentences(page)
    path = (DOCS / page).resolve()
    return [*found, *_typed(path, page, computed)]


def faces_everywhere() -> Iterator[Finding]:
    """Every page states the same split of the faces."""
    known = datasets()
    sizes = {name: known[name].records for name in ("celeba-gender-64", "celeba-gender-128")}
    persons = {f"{sizes[name]:,}": re.findall(r"\d+", known[name].split) for name in sizes}
    tested = RESULTS["real-faces-32-cpu"].rows[0].data.test_records or 0
    for path in documentation_pages(ROOT):
        text = path.read_text(encoding="utf-8")
        wrong = [
            *(
                one
                for one in re.finditer(r"([\d,]+)\s(?:training\s)?images\sof\s(\d+)\spersons", text)
                if persons.get(one[1], [""])[0] != one[2]
            ),
            *(
                one
                for one in re.finditer(r"([\d,]+)\s(?:test\s)?images\sof\s(\d+)\sothers", text)
                if (one[1], one[2]) != (f"{tested:,}", persons["14,999"][1])
            ),
            *(
                one
                for one in re.finditer(r"([\d,]+)\sshow\swomen\sand\s(\d+)\smen", text)
                if int(one[1].replace(",", "")) + int(one[2]) != tested
            ),
        ]
        for one in wrong:
            yield Finding(
                path, line_of(text, one.start()), f"{' '.join(one[0].split())}: the split of the faces is another"
            )


WITH_UNIT = re.compile(r"\d[\d.,]*\s?(?:points|seconds|minutes|hours|days|[KMGT]i?B|ms|s|times)\b")
OWN_REGION = re.compile(r"<!-- (expected use|table|case studies|measured)\b[^>]*-->.*?<!-- /\1 -->", re.DOTALL)
RENDERED = ("reproduction.md", "command-line.md")
"""Pages that are written as a whole by a script, and compared in pages.py."""
SETTINGS = frozenset(
    {
        ("how-to/reproduce.md", "570 seconds"),
        ("how-to/scale.md", "5 minutes"),
        ("reference/data.md", "1 KB"),
        ("reference/data.md", "64 MiB"),
        ("reference/evaluation.md", "0.01, times"),
        ("reference/evaluation.md", "4, times"),
        ("reference/methods/gs-wgan.md", "1.07 times"),
        ("results/audits.md", "200 times"),
        ("results/checks.md", "1.3 times"),
    }
)
"""Numbers with a unit that say how something was set up, or what was aimed at."""


def with_unit(text: str, computed: Iterable[str]) -> list[str]:
    """Times, sizes, points and factors of a page outside of tables that are rendered and of computed sentences."""
    text = OWN_REGION.sub("", REGION.sub("", text))
    text = " ".join(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split())
    for sentence in computed:
        text = text.replace(sentence, "")
    return WITH_UNIT.findall(re.sub(r"`[^`]*`", "", text))


def _typed(path: Path, page: str, computed: Iterable[str]) -> Iterator[Finding]:
    """Numbers with a unit that are neither rendered nor computed nor a setting."""
    if path.name in RENDERED:
        return
    text = path.read_text(encoding="utf-8")
    for number in with_unit(text, computed):
        if (page, number) not in SETTINGS:
            yield Finding(
                path, line_of(text, number), f"{number} is typed: render it, or compute it in {Path(__file__).name}"
            )


def other_pages() -> Iterator[Finding]:
    """Numbers with a unit on pages of which no sentence is computed."""
    for path in documentation_pages(ROOT):
        page = path.relative_to(DOCS).as_posix() if DOCS in path.parents else f"../{path.name}"
        if page not in SENTENCES:
            yield from _typed(path, page, ())

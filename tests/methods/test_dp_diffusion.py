"""DP-Diffusion: shares of the budget, one ledger for all parts, strata of noise levels, and every form under replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato.audit.replay import replay
from sfumato.experiments.spec import read_experiments
from sfumato.methods.dp_diffusion import DPDiffusion, TaughtDiffusion
from sfumato.methods.parts.teacher import guided
from sfumato.methods.parts.time_budget import cpu_settings, settings_for_minutes
from sfumato.networks.features import ScatteringClassifier
from sfumato.privacy import Budget, Ledger, NoGuarantee, Plan, PrivateRecords, Randomness
from sfumato.training.checkpoint import FolderCheckpoint
from steady_machine import steady_machine

BUDGET = Budget(3.0, 1e-5)
SMALL = DPDiffusion.small()


def bars(count: int = 40) -> PrivateRecords:
    """Bright bars on dark ground, upright for class 0 and lying for class 1."""
    random = np.random.default_rng(3)
    pixels = random.integers(0, 40, (count, 1, 28, 28)).astype(np.uint8)
    labels = np.arange(count) % 2
    pixels[labels == 0, :, :, 11:17] = 220
    pixels[labels == 1, :, 11:17, :] = 220
    return PrivateRecords(pixels, labels, classes=("upright", "lying"))


# The budget


def test_each_part_alone_costs_its_share_and_all_together_keep_the_budget() -> None:
    plan = SMALL.plan(BUDGET)
    assert 0.95 * BUDGET.epsilon < plan.epsilon <= BUDGET.epsilon
    for prefix, share in (("teacher", SMALL.teacher_share), ("latent ", SMALL.latent_share)):
        alone = Plan(BUDGET, tuple(event for event in plan.events if event.name.startswith(prefix)))
        assert 0.9 * share * BUDGET.epsilon < alone.epsilon <= share * BUDGET.epsilon


def test_the_forms_list_what_they_ask() -> None:
    names = {
        form: [query.name for query in replace(SMALL, warm_start=form).queries()]
        for form in ("latent", "procedural", "none")
    }
    assert names["latent"] == ["label counts", "teacher", "latent training", "latent prior", "training"]
    assert names["procedural"] == names["none"] == ["label counts", "teacher", "training"]
    assert [query.name for query in DPDiffusion.dpdm().queries()] == ["training"]


def test_the_latent_generator_is_charged_to_the_same_ledger(tmp_path: Path) -> None:
    SMALL.fit(bars(), BUDGET, tmp_path / "ledger")
    ledger = Ledger.read(tmp_path / "ledger")
    assert {event.name: event.steps for event in ledger.events()} == {
        "label counts": 1,
        "teacher": 2,
        "latent training": 2,
        "latent prior": 1,
        "training": 2,
    }
    assert ledger.spent() <= BUDGET.epsilon


def test_impossible_settings_are_refused() -> None:
    for change, message in (
        ({"warm_start": "public"}, "warm_start"),
        ({"latent_share": 0.0}, "share"),
        ({"latent_share": 0.9, "teacher_share": 0.2}, "share"),
        ({"teacher_share": 0.0}, "guidance"),
        ({"sigma_min": 30.0}, "sigma_min"),
        ({"latent": "dp-vae"}, "latent"),
        ({"ema_decay": 1.0}, "ema_decay"),
        ({"draws": 0}, "draws"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(SMALL, **change)


@pytest.mark.long
@pytest.mark.parametrize(
    "form",
    [
        replace(SMALL, latent="dp-lflow", latent_steps=1, public_images=4),
        replace(SMALL, warm_start="procedural"),
        replace(SMALL, warm_start="none", teacher_share=0.0, guidance=0.0),
    ],
    ids=["dp-lflow", "procedural", "dpdm"],
)
def test_neighbour_replay_finds_nothing_in_the_other_forms(form: DPDiffusion) -> None:
    result = replay(form, bars(12), budget=Budget(30.0, 1e-5), pairs=2)
    assert not result.findings and result.pairs >= 2


# Training


def quantiles(method: DPDiffusion, records: torch.Tensor) -> torch.Tensor:
    """The places of the records' noise levels in their law, ``[records, draws]``."""
    model = method.build((1, 28, 28), 2).denoiser
    draw = torch.arange(method.draws).repeat(len(records))
    random = Randomness(0).draws(records.repeat_interleave(method.draws), draw, "test")
    levels: list[torch.Tensor] = []
    model.loss = lambda clean, noise, sigma, labels: levels.append(sigma) or sigma  # type: ignore[method-assign]
    method.loss(model, torch.rand(len(draw), 1, 28, 28), torch.zeros_like(draw), random)
    place = torch.special.ndtr((levels[0].log() - method.log_sigma_mean) / method.log_sigma_std)
    return place.view(len(records), method.draws)


def test_the_draws_of_a_record_fall_into_different_strata() -> None:
    method = replace(SMALL, draws=8)
    found = quantiles(method, torch.arange(3))
    assert torch.equal((8 * found).long(), torch.arange(8).expand(3, 8))
    assert torch.equal(quantiles(method, torch.tensor([2, 7]))[0], found[2]), "other records change nothing"


def test_dpdm_draws_noise_levels_independently_and_has_the_authors_settings() -> None:
    method = DPDiffusion.dpdm()
    found = quantiles(replace(method, width=4, patch_size=4), torch.arange(50))
    # With strata every record has one draw below 1/32; of independent draws a record has none in more than a third.
    lowest = (found < 1 / 32).sum(1)
    assert (lowest == 0).any() and (lowest > 1).any() and abs(float(found.mean()) - 0.5) < 0.05
    assert method.sigma_data**2 == pytest.approx(1 / 3) and method.churn == 0 and method.sampling_steps == 50
    file = Path(__file__).parents[2] / "experiments" / "dp-diffusion.toml"
    (experiment,) = read_experiments(file, only=["dpdm"])
    assert experiment.configured({}) == method, "the experiment trains the preset"


class StopAt:
    """Stops a training after ``steps`` private steps, and counts the steps on public images."""

    def __init__(self, steps: int) -> None:
        self.steps, self.public = steps, 0

    def report(self, name: str, done: int, total: int, epsilon: float | None) -> None:
        self.public += name == "warm start"
        if name == "training" and done >= self.steps:
            raise KeyboardInterrupt


@pytest.mark.long
def test_a_run_that_goes_on_does_not_train_on_public_images_again(tmp_path: Path) -> None:
    method = replace(SMALL, steps=4)
    folder, first, second = tmp_path / "checkpoint", StopAt(2), StopAt(9)
    with pytest.raises(KeyboardInterrupt):
        method.fit(bars(), BUDGET, tmp_path / "ledger", checkpoint=FolderCheckpoint(folder, seconds=0), progress=first)
    method.fit(bars(), BUDGET, tmp_path / "ledger", checkpoint=FolderCheckpoint(folder, seconds=0), progress=second)
    assert first.public > 0 and second.public == 0
    charged = {event.name: event.steps for event in Ledger.read(tmp_path / "ledger").events()}
    assert charged["training"] == 4 and charged["latent training"] == SMALL.latent_steps


@pytest.mark.long
@pytest.mark.parametrize(("side", "patch"), [(32, 1), (64, 2), (128, 2)])
def test_colour_images_of_every_size_are_trained_and_sampled(side: int, patch: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 3, side, side)).astype(np.uint8)
    records = PrivateRecords(pixels, np.arange(12) % 2, classes=("a", "b"))
    method = replace(SMALL, patch_size=patch, steps=1, latent_steps=1, teacher_steps=1, public_steps=1)
    images = method.fit(records, BUDGET, seed=0, device="cpu").sample(4).images
    assert images.shape == (4, 3, side, side) and images.std() > 0


@pytest.mark.long
def test_training_on_public_images_lowers_the_loss_without_the_data() -> None:
    nobody = PrivateRecords(np.zeros((0, 1, 28, 28), dtype=np.uint8), classes=("a", "b"))
    short = replace(SMALL, warm_start="procedural", width=8, patch_size=2, public_images=256, public_batch_size=32)
    losses = []
    for steps in (1, 300):
        # One private step at a learning rate of nothing: what is released is the warm start.
        method = replace(short, public_steps=steps, steps=1, learning_rate=0.0, ema_decay=0.0)
        model = method.fit(nobody, BUDGET, seed=1, device="cpu").model
        assert isinstance(model, TaughtDiffusion)
        torch.manual_seed(0)
        clean = torch.rand(64, 1, 4, 4).repeat_interleave(7, 2).repeat_interleave(7, 3) * 2 - 1
        with torch.no_grad():
            labels = torch.zeros(64, dtype=torch.int64)
            losses.append(
                float(model.denoiser.loss(clean, torch.randn_like(clean), torch.full((64,), 0.3), labels).mean())
            )
    assert losses[1] < 0.85 * losses[0]


def test_with_little_noise_the_teacher_tells_the_classes_apart() -> None:
    method = replace(SMALL, warm_start="none", teacher_steps=20)
    release = method.fit(bars(200), NoGuarantee(), device="cpu", seed=0)
    assert isinstance(release.model, TaughtDiffusion) and release.model.teacher is not None
    test = bars(60)
    logits = release.model.teacher(torch.from_numpy(test._pixels).float() / 255.0)
    assert float((logits.argmax(1).numpy() == test._labels).mean()) > 0.95


def test_guidance_moves_an_estimate_towards_its_label() -> None:
    torch.manual_seed(0)
    teacher = ScatteringClassifier((1, 28, 28), 3)
    torch.nn.init.normal_(teacher.linear.weight, std=3.0)
    clean, labels = torch.rand(6, 1, 28, 28) * 2 - 1, torch.arange(6) % 3

    def belief(images: torch.Tensor) -> torch.Tensor:
        return teacher((images + 1) / 2).log_softmax(1).gather(1, labels[:, None])

    moved = guided(clean, labels, teacher, variance=torch.full((6, 1, 1, 1), 0.01))
    assert (belief(moved) > belief(clean)).all()
    assert torch.equal(guided(clean, labels, teacher, variance=torch.zeros(6, 1, 1, 1)), clean)


# A time budget


def test_on_a_cpu_the_networks_are_narrow_unless_a_size_was_chosen() -> None:
    assert cpu_settings(DPDiffusion(), images=60_000).width == 16
    chosen = cpu_settings(DPDiffusion(width=24, latent_steps=90), images=60_000)
    assert (chosen.width, chosen.latent_steps, chosen.sampling_rate) == (24, 90, 0.02)


@pytest.mark.long
def test_more_minutes_mean_more_work_and_too_few_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    steady_machine(monkeypatch)
    size = {"shape": (1, 28, 28), "classes": 2, "images": 500}
    method = replace(SMALL, warm_start="none", teacher_steps=40)
    short = settings_for_minutes(method, minutes=0.5, **size)
    long = settings_for_minutes(method, minutes=20.0, **size)
    assert short.method.steps * short.method.draws < long.method.steps * long.method.draws
    assert 0 < long.seconds <= 20 * 60 * 1.05 and "rows at" in long.why
    with pytest.raises(ValueError, match="teacher and latent generator alone"):
        settings_for_minutes(method, minutes=1e-4, **size)

"""The same model by two engines: DP-VAE's network, batches, clip and noise by Sfumato and by Opacus, in one run.

    OMP_NUM_THREADS=1 python benchmarks/opacus_engine.py --results docs/results
    python docs/tools/render.py

Both train the network of ``dp-vae`` with the same Poisson sampling rate, clip norm, noise multiplier, steps, learning
rate and averaging on drawn digits, in turn and each in a process of its own. Accuracy and distance are measured by the
same evaluation. Opacus is used as its documentation shows: ``PrivacyEngine.make_private`` with Poisson sampling.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from sfumato.data import Images, PrivateImages
from sfumato.data.digits import draw_digits
from sfumato.evaluation.evaluate import evaluate
from sfumato.evaluation.results import SYNTHETIC
from sfumato.experiments.layout import metric_name
from sfumato.experiments.results import DataUsed, Measured, ResultRow, ResultSet, provenance
from sfumato.methods.dp_vae import DPVAE, ConditionalVAE
from sfumato.privacy import Budget
from sfumato.training.optimisation import ema_update
from sfumato.training.profiling import peak_memory

RECORDS, TEST_RECORDS, SYNTHETIC_IMAGES, TRAININGS = 4000, 2000, 2000, 3
EPSILON, DELTA = 10.0, 1e-5
METHOD = DPVAE(steps=150, width=8, sampling_rate=0.05)
ENGINES = {"sfumato": "Sfumato", "opacus": "Opacus, per-sample gradients"}
SHOWN = ("LR", "MLP", "CNN", "own-class distance")


class Rows(nn.Module):
    """The loss of each row as a module, which is what Opacus wraps."""

    def __init__(self, model: ConditionalVAE) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        """Negative ELBO, ``[B]``."""
        return self.model.negative_elbo(images, labels, noise)


def by_sfumato(digits: Images) -> tuple[nn.Module, float]:
    """The network and the seconds of its training."""
    private = PrivateImages.from_images(digits)
    start = time.perf_counter()
    release = METHOD.fit(private, Budget(EPSILON, DELTA), device="cpu")
    return release.model, time.perf_counter() - start


def by_opacus(digits: Images) -> tuple[nn.Module, float]:
    """The same by ``PrivacyEngine.make_private``."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    start = time.perf_counter()
    [event] = METHOD.plan(Budget(EPSILON, DELTA)).events
    images = torch.from_numpy(digits.pixels).float() / 255.0
    data = TensorDataset(images, torch.from_numpy(digits.labels))
    model, average = (METHOD.build(images.shape[1:], len(digits.classes)) for _ in range(2))
    average.load_state_dict(model.state_dict())
    average.requires_grad_(False)
    rows, optimizer, loader = PrivacyEngine(secure_mode=False).make_private(
        module=Rows(model),
        optimizer=torch.optim.Adam(model.parameters(), lr=METHOD.learning_rate),
        data_loader=DataLoader(data, batch_size=round(METHOD.sampling_rate * len(data))),
        noise_multiplier=event.noise_multiplier,
        max_grad_norm=METHOD.clip_norm,
        poisson_sampling=True,
    )
    index = 0
    while index < METHOD.steps:
        for batch, labels in loader:
            if index == METHOD.steps:
                break
            optimizer.zero_grad()
            rows(batch, labels, torch.randn(len(batch), METHOD.latent_dim)).mean().backward()
            optimizer.step()
            ema_update(average, model, index=index, decay=METHOD.ema_decay)
            index += 1
    return average, time.perf_counter() - start


def measure(engine: str, seed: int) -> dict[str, float]:
    """One training by one engine, and the evaluation of its images."""
    train, test = draw_digits(RECORDS, seed=0), draw_digits(TEST_RECORDS, seed=1)
    torch.manual_seed(seed)
    model, seconds = {"sfumato": by_sfumato, "opacus": by_opacus}[engine](train)
    found = {"seconds": seconds, "peak MiB": peak_memory() / 2**20}
    labels = torch.arange(SYNTHETIC_IMAGES) % len(train.classes)
    with torch.no_grad():
        drawn = (255 * METHOD.generate(model, labels)).round().to(torch.uint8)
    synthetic = Images(drawn.numpy(), labels.numpy(), train.classes)
    result = evaluate(synthetic, train, test, seeds=[seed], with_inception=False, baselines=False).to_json()
    measured = {metric_name(one): one["mean"] for one in result["measurements"] if one["row"] == SYNTHETIC}
    return {**found, **{name: (100 if name in SHOWN[:3] else 1) * measured[name] for name in SHOWN}}


def row(engine: str, found: list[dict[str, float]]) -> ResultRow:
    """All trainings by an engine."""
    values = {name: Measured.of([one[name] for one in found]) for name in (*SHOWN, "seconds", "peak MiB")}
    return ResultRow(
        setting=ENGINES[engine],
        data=DataUsed("digits", "drawn", records=RECORDS, test_records=TEST_RECORDS),
        protocol=f"sinkhorn, {SYNTHETIC_IMAGES:,} images",
        epsilon=EPSILON,
        delta=DELTA,
        unit="image",
        method=METHOD.name if engine == "sfumato" else None,
        parameters=METHOD.parameters(),
        images=SYNTHETIC_IMAGES,
        values=values,
        seconds=statistics.fmean(one["seconds"] for one in found),
    )


def main() -> None:
    """Both engines in turn, each training in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    parser.add_argument("--one", choices=ENGINES)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.one:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(json.dumps(measure(chosen.one, chosen.seed)))
        return
    found: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    for seed in range(TRAININGS):
        for engine in ENGINES:
            command = [sys.executable, __file__, "--one", engine, "--seed", str(seed)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[engine].append(json.loads(done.stdout.splitlines()[-1]))
            print(engine, found[engine][-1], file=sys.stderr)
    made = provenance("python benchmarks/opacus_engine.py", "cpu")
    made = replace(made, versions={**made.versions, "opacus": version("opacus")})
    title = "DP-VAE's network on drawn digits by two engines, with the same batches, clip and noise"
    rows = tuple(row(engine, found[engine]) for engine in ENGINES)
    ResultSet("opacus-engine", title, "full", made, rows).save(chosen.results / "opacus-engine.json", private=False)


if __name__ == "__main__":
    main()

"""What evaluation says about real data, and its cost: the numbers of docs/reference/evaluation.md.

    python benchmarks/evaluation.py accuracies DATA [--seeds 5]      LR, MLP, CNN trained on the real training split
        [--synthetic FOLDER]                                          … or on what `sfumato sample` wrote there
    python benchmarks/evaluation.py frechet DATA [--images N]        FID and KID of the training against the test split
    python benchmarks/evaluation.py precision DATA [--images N]      FID in float32, TF32, bfloat16 and float16 (GPU)
    python benchmarks/evaluation.py command DATA [--images N]        seconds of a whole evaluation of N images

DATA is a folder with idx files (MNIST, Fashion-MNIST) or anything else with the splits "train" and "test".
"""

from __future__ import annotations

import argparse
import json
import statistics as plain
import time

import numpy as np
import torch

from sfumato.data.images import Images, PublicImages, read
from sfumato.evaluation.classifiers import CNN, LOGISTIC_REGRESSION, MLP, score, train_classifier
from sfumato.evaluation.evaluate import evaluate
from sfumato.evaluation.features import (
    FeatureNetwork,
    FeatureStatistics,
    extract,
    frechet_distance,
    full_precision,
    inception,
    kernel_distance,
    statistics,
)


def data(arguments: argparse.Namespace) -> tuple[Images, Images]:
    return read(arguments.data, split="train", infer_classes=True), read(
        arguments.data, split="test", infer_classes=True
    )


def accuracies(arguments: argparse.Namespace) -> dict[str, object]:
    train, test = data(arguments)
    if arguments.synthetic:
        train = PublicImages.read(arguments.synthetic)
    classes = len(train.classes)
    found: dict[str, object] = {"train": len(train.pixels), "test": len(test.pixels), "seeds": arguments.seeds}
    for spec in (LOGISTIC_REGRESSION, MLP, CNN):
        start, values = time.perf_counter(), []
        for seed in range(1 if spec.network is None else arguments.seeds):
            trained = train_classifier(
                spec, train.pixels, train.labels, classes=classes, seed=seed, device=arguments.device
            )
            values.append(100 * score(trained, test.pixels, test.labels, classes=classes).overall)
        deviation = plain.stdev(values) if len(values) > 1 else None
        seconds = (time.perf_counter() - start) / len(values)
        found[spec.name] = {"mean": plain.fmean(values), "std": deviation, "values": values, "seconds": seconds}
    return found


def _statistics(network: FeatureNetwork, images: Images, arguments: argparse.Namespace) -> FeatureStatistics:
    order = np.random.default_rng(0).permutation(len(images.pixels))[: arguments.images]
    return statistics(extract(network, images.pixels[np.sort(order)], device=arguments.device))


def frechet(arguments: argparse.Namespace) -> dict[str, object]:
    network, (train, test) = inception(), data(arguments)
    start = time.perf_counter()
    first, second = _statistics(network, train, arguments), _statistics(network, test, arguments)
    seconds = time.perf_counter() - start
    mean, deviation, size = kernel_distance(second, first)
    return {
        "fid": frechet_distance(first, second),
        "kid": [mean, deviation],
        "kid_subset_size": size,
        "images": [first.count, second.count],
        "features": network.identity(),
        "images_per_second": (first.count + second.count) / seconds,
    }


def precision(arguments: argparse.Namespace) -> dict[str, object]:
    """How far FID moves when the network computes in fewer bits; what is not measured is not used."""
    network, (train, test) = inception(), data(arguments)
    order = np.random.default_rng(0).permutation(len(train.pixels))[: arguments.images]
    pixels = {"train": train.pixels[np.sort(order)], "test": test.pixels[: arguments.images]}

    def measure(kind: str) -> dict[str, float]:
        def features(images: np.ndarray) -> torch.Tensor:
            module = network.module.to(arguments.device)
            parts = []
            for start in range(0, len(images), 500):
                batch = torch.tensor(images[start : start + 500], device=arguments.device)
                if kind == "tf32":
                    parts.append(module(batch).float())
                elif kind == "float32":
                    with full_precision():
                        parts.append(module(batch))
                else:
                    with torch.autocast(torch.device(arguments.device).type, dtype=getattr(torch, kind)):
                        parts.append(module(batch).float())
            return torch.cat(parts)

        with torch.inference_mode():
            features(pixels["test"][:500])
            start = time.perf_counter()
            both = [features(images) for images in pixels.values()]
            float(both[-1].sum())
            rate = sum(len(images) for images in pixels.values()) / (time.perf_counter() - start)
            fid = frechet_distance(statistics(both[0]), statistics(both[1]))
        return {"fid": fid, "images_per_second": rate}

    kinds = ("float32", "tf32", "bfloat16", "float16") if "cuda" in arguments.device else ("float32", "bfloat16")
    return {kind: measure(kind) for kind in kinds}


def command(arguments: argparse.Namespace) -> dict[str, object]:
    train, test = data(arguments)
    rows = np.random.default_rng(1).permutation(len(train.pixels))[: arguments.images]
    synthetic = Images(train.pixels[rows], train.labels[rows], train.classes)
    start = time.perf_counter()
    result = evaluate(synthetic, train, test, seeds=range(arguments.seeds), device=arguments.device)
    seconds = time.perf_counter() - start
    brief = [
        [one.row, one.classifier or one.metric, one.mean, one.std]
        for one in result.measurements
        if one.metric in ("accuracy", "fid", "kid")
    ]
    return {"seconds": seconds, "counts": result.to_json()["counts"], "measurements": brief}


def main() -> None:
    modes = {
        "accuracies": accuracies,
        "frechet": frechet,
        "precision": precision,
        "command": command,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=modes)
    parser.add_argument("data")
    parser.add_argument("--synthetic", default=None)
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    machine = torch.cuda.get_device_name() if "cuda" in arguments.device else f"CPU, {torch.get_num_threads()} threads"
    print(json.dumps({"machine": machine, "torch": torch.__version__, **modes[arguments.mode](arguments)}, indent=2))


if __name__ == "__main__":
    main()

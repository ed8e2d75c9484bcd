"""Classifiers that are trained at the same time, each in a process of its own.

The three networks of the protocol ``bench`` leave most of a large GPU idle when they are trained one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch

from sfumato.evaluation.classifier_training import Pick
from sfumato.evaluation.classifiers import Progress, TrainedClassifier, TrainingJob, silent, train_job

_Weights = list[tuple[int, dict[str, np.ndarray]]]
"""Epoch and weights of each pick, as arrays: tensors would share memory with a process that ends."""


def train_classifiers(
    jobs: Sequence[TrainingJob], *, together: int = 1, progress: Progress = silent
) -> list[TrainedClassifier]:
    """Train all jobs, at most ``together`` networks at a time; the number changes no classifier and no order."""
    if together < 1:
        raise ValueError(f"at least one classifier is trained at a time, not {together}")
    if together == 1 or sum(job.trains_a_network for job in jobs) < 2:
        return [train_job(job, progress) for job in jobs]
    # A process that has used a GPU cannot be copied, so that new ones are started.
    with ProcessPoolExecutor(
        min(together, len(jobs)),
        mp_context=get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(max(1, torch.get_num_threads() // together),),
    ) as pool:
        started: list[Future[_Weights] | None] = [
            pool.submit(_weights, job) if job.trains_a_network else None for job in jobs
        ]
        return [
            train_job(job, progress) if future is None else _classifier(job, future.result(), progress)
            for job, future in zip(jobs, started, strict=True)
        ]


def _weights(job: TrainingJob) -> _Weights:
    """In another process: train the network of a job."""
    return [(pick.epoch, {name: value.cpu().numpy() for name, value in pick.state.items()}) for pick in job.picks()]


def _classifier(job: TrainingJob, weights: _Weights, progress: Progress) -> TrainedClassifier:
    progress(job.spec.name, job.spec.epochs, job.spec.epochs)
    tensors = [Pick(epoch, {name: torch.tensor(value) for name, value in state.items()}) for epoch, state in weights]
    return job.classifier(tensors)

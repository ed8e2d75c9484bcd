"""What a plan says about work: every part of every method, in proportion to the collection."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from typer.testing import CliRunner

from sfumato.cli.main import app
from sfumato.methods.registry import find
from sfumato.training.profiling import _OperationCounter, rehearse


def test_every_part_is_counted() -> None:
    for name in ["dp-merf", "dp-lflow", "dppm"]:
        method = find(name).small()
        work = rehearse(method, shape=(1, 8, 8), classes=2, images=400)
        planned = {event.name: event for event in method.queries()}
        assert planned.keys() <= {part.name for part in work.parts}
        for part in work.parts:
            if part.name in planned:
                assert part.steps == planned[part.name].steps
                assert part.records == round(400 * planned[part.name].sampling_rate)
        assert work.parameters > 0 and work.operations > 0
        assert sum(part.steps * part.operations for part in work.parts) == work.operations


def test_work_grows_with_the_collection_and_not_time_alone() -> None:
    method = find("dp-lflow").small()
    small, large = (rehearse(method, shape=(1, 8, 8), classes=2, images=images) for images in (1000, 2000))
    assert large.parts[-2].records == 2 * small.parts[-2].records
    assert 1.2 < large.operations / small.operations < 3.0


def test_a_grouped_convolution_counts_as_its_groups() -> None:
    images, weights = torch.randn(3, 8, 6, 6, requires_grad=True), torch.randn(8, 2, 3, 3, requires_grad=True)

    def operations(convolve: Callable[..., Tensor], groups: int) -> int:
        """The same work as one convolution of four groups, or as four convolutions."""
        with _OperationCounter() as counter:
            for own, kernel in zip(images.chunk(4 // groups, 1), weights.chunk(4 // groups), strict=True):
                convolve(own, kernel, groups=groups).sum().backward()
        return counter.operations

    for convolve, places in ((F.conv2d, 4 * 4), (F.conv_transpose2d, 6 * 6)):
        assert operations(convolve, 4) == operations(convolve, 1) == 3 * (2 * 3 * places * 8 * 2 * 3 * 3)


def test_the_command_line_says_what_a_run_costs() -> None:
    words = ["plan", "dp-merf", "--epsilon", "1", "--size", "8", "--declared-size", "500", "--set", "iterations=7"]
    facts = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    parts = {part["name"]: part["steps"] for part in facts["work"]["parts"]}
    assert parts == {"label counts": 1, "mean embedding": 1, "generator": 7, "everything else": 1}
    assert "floating-point operations" in CliRunner().invoke(app, words).stdout.replace("\n", " ")

"""Freed memory is kept: what was freed serves the next blocks without new pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from sfumato.cli.main import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
_ = [torch.ones(4_000_000) for number in range(8)]
del _
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones(4_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    """Of asking three times for 16 MB, after eight such blocks were freed."""
    found = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
    return int(found.stdout)


@pytest.mark.long
def test_blocks_within_freed_memory_need_no_new_pages() -> None:
    assert page_faults("keep") < 100 < 1_000 < page_faults("return")

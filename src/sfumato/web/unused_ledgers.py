"""A ledger on which nothing was charged binds nobody: the next training may choose another limit, unit or δ."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

_UNBINDING = frozenset({"ledger", "key", "run", "seeded", "own code"})


def remove_if_unused(ledger: Path) -> bool:
    """Remove a ledger that holds no charge and that nobody writes; returns whether there is no ledger now."""
    if not ledger.exists():
        return True
    lock = os.open(ledger, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kinds = {json.loads(line)["kind"] for line in ledger.read_bytes().splitlines()}
        if not kinds <= _UNBINDING:
            return False
        # The head first: a ledger of one entry needs none, and a head without its ledger would count as a loss.
        ledger.with_name(ledger.name + ".head").unlink(missing_ok=True)
        ledger.unlink()
        return True
    except (BlockingIOError, ValueError, KeyError, TypeError):
        return False
    finally:
        os.close(lock)

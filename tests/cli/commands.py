"""Runs commands for the tests of the command line."""

from __future__ import annotations

import sys

import pytest

from sfumato.cli.main import main


def run_here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of a command that runs in this process, which has torch loaded already."""
    monkeypatch.setattr(sys, "argv", ["sfumato", *arguments])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0

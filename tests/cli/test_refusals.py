"""What a run refuses is told in one line, without a traceback."""

from __future__ import annotations

import sys

import pytest

from sfumato.cli import main
from sfumato.privacy import RunRefused
from sfumato.privacy.curator import AnswerLost
from sfumato.privacy.step import PrivateRowsError


def test_a_refused_run_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in [RunRefused, AnswerLost, PrivateRowsError]:

        def refuse(kind: type[Exception] = kind) -> None:
            raise kind("start a new run")

        monkeypatch.setattr(main, "app", refuse)
        monkeypatch.setattr(sys, "argv", ["sfumato"])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert ended.value.code == 2 and capsys.readouterr().err == "error: start a new run\n"

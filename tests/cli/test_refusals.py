"""What a run refuses is told in one line, without a traceback."""

from __future__ import annotations

import sys

import pytest

from sfumato.cli import main
from sfumato.privacy import RunRefused
from sfumato.privacy.curator import AnswerLost
from sfumato.privacy.withheld import PrivateRowsError


@pytest.mark.parametrize("kind", [RunRefused, AnswerLost, PrivateRowsError])
def test_a_refused_run_is_told_in_one_line(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise kind("start a new run")

    monkeypatch.setattr(main, "app", refuse)
    monkeypatch.setattr(sys, "argv", ["sfumato"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2 and capsys.readouterr().err == "error: start a new run\n"

"""The command ``sfumato``: all its subcommands, and what happens to an error."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from sfumato.cli.audit import audit_app
from sfumato.cli.console import reset_flags, use_quiet, use_traceback, wants_traceback
from sfumato.cli.demo import demo
from sfumato.cli.evaluate import evaluate_command
from sfumato.cli.experiment import compare_command, experiment_app, reproduce_app
from sfumato.cli.inspect import cache, inspect
from sfumato.cli.ledger import ledger
from sfumato.cli.options import expanded
from sfumato.cli.plan import methods, plan
from sfumato.cli.release import card, report_command, sample
from sfumato.cli.train import train, tune
from sfumato.cli.web import web

app = typer.Typer(
    help="Learn from a private image collection and release a synthetic one, with an (ε, δ) that can be checked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_COMMANDS: dict[str, Callable[..., None]] = {
    "inspect": inspect,
    "methods": methods,
    "plan": plan,
    "train": train,
    "tune": tune,
    "sample": sample,
    "ledger": ledger,
    "card": card,
    "evaluate": evaluate_command,
    "report": report_command,
    "compare": compare_command,
    "demo": demo,
    "cache": cache,
    "web": web,
}
_GROUPS = {"audit": audit_app, "reproduce": reproduce_app, "experiment": experiment_app}

for _name, _function in _COMMANDS.items():
    app.command(_name)(expanded(_function))
for _name, _group in _GROUPS.items():
    for _command in _group.registered_commands:
        if _command.callback is not None:
            _command.callback = expanded(_command.callback)
    app.add_typer(_group, name=_name)


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"sfumato {version('sfumato')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", callback=use_quiet, help="Print the result and errors only.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", callback=use_traceback, help="Show where an error was raised.")
    ] = False,
) -> None:
    """Learn from a private image collection and release a synthetic one, with an (ε, δ) that can be checked."""
    command = context.invoked_subcommand
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE") != "1" and command != "train":
        # Any other would do all of its work in each process.
        raise ValueError(f"torchrun: only 'train' runs in several processes; start 'sfumato {command}' without it")


def main() -> None:
    """Run a command. One line and exit status 2 for what the user can correct; a traceback for a fault of ours."""
    reset_flags()
    keep_freed_memory()
    try:
        app()
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if wants_traceback() or not _is_expected(error):
            raise
        print(f"error: {_told(error)}", file=sys.stderr)
        sys.exit(2)


_ADVICE = {
    errno.ENOSPC: "there is no space left to write to",
    errno.EDQUOT: "there is no space left to write to",
    errno.EFBIG: "a file may not become as large as it has to",
    errno.EROFS: "this place cannot be written to",
    errno.EACCES: "this place may not be read or written to by this user",
    errno.EPERM: "this place may not be read or written to by this user",
}


def _told(error: Exception) -> object:
    if isinstance(error, OSError) and error.errno in _ADVICE:
        place = f" ({error.filename})" if error.filename else ""
        return (
            f"{_ADVICE[error.errno]}{place}. Make space or choose another place, then give the command again. What a "
            "training has spent is on its ledger; --resume goes on with it, unless the last answer could not be kept"
        )
    return error.args[0] if isinstance(error, LookupError) and error.args else error


def _is_expected(error: Exception) -> bool:
    if isinstance(error, ValueError | LookupError | OSError | ImportError):
        return True
    # Imported here, so that ``sfumato --help`` need not wait for torch.
    from sfumato.privacy import BudgetExceeded, LedgerBusy, LedgerDamaged, RunRefused
    from sfumato.privacy.curator import AnswerLost
    from sfumato.privacy.distributed import RankLost
    from sfumato.privacy.step import PrivateRowsError

    refusals = BudgetExceeded | LedgerBusy | LedgerDamaged | RunRefused | AnswerLost
    return isinstance(error, refusals | RankLost | PrivateRowsError)


# Parameters of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_NEVER = -1
_MIB = 1 << 20


def keep_freed_memory() -> bool:
    """Let this process keep blocks of up to 32 MiB that it frees; whether the C library could be told to.

    Larger blocks still go back, so that memory stays bounded. It concerns the whole process, so that only programs
    should call it: the ``sfumato`` command does.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {_MMAP_THRESHOLD: 32 * _MIB, _TRIM_THRESHOLD: _NEVER, _TOP_PAD: 64 * _MIB}
    return all(mallopt(parameter, value) == 1 for parameter, value in settings.items())

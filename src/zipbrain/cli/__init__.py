"""Thin doors to all of it: the `zipbrain` command, with one file per subcommand and no torch before it is needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from zipbrain import __version__
from zipbrain.cli.ablate import ablate
from zipbrain.cli.any_model import takes_any_model
from zipbrain.cli.app import App
from zipbrain.cli.compare import compare
from zipbrain.cli.data import app as data
from zipbrain.cli.demo import demo
from zipbrain.cli.doctor import doctor
from zipbrain.cli.evaluate import evaluate
from zipbrain.cli.export import export
from zipbrain.cli.finetune import finetune
from zipbrain.cli.live import app as live
from zipbrain.cli.models import models
from zipbrain.cli.predict import predict
from zipbrain.cli.profile import profile
from zipbrain.cli.report import report
from zipbrain.cli.resources import name_lack
from zipbrain.cli.search import search
from zipbrain.cli.stopping import AGAIN, EXIT_CODE, GOES_ON, Stopped, sigterm_as_interrupt, when_stopped
from zipbrain.cli.terminal import Console
from zipbrain.cli.tune import tune
from zipbrain.errors import MissingExtra, OptionError, ZipbrainError
from zipbrain.text import printable

# Recent typer carries a copy of click, so click's own classes would not catch its errors.
_ClickException: type[BaseException] = typer.BadParameter.__mro__[2]

# What brings everything that a command needs; predict needs the base package alone.
_EXTRAS = dict.fromkeys(("demo", "evaluate", "compare", "ablate", "search", "report", "tune"), "torch,report")
_EXTRAS |= {
    "export": "export",
    "profile": "export",
    "models": "torch",
    "finetune": "train",
    "data": "train",
    "live": "live",
}

app = App(add_completion=True, pretty_exceptions_enable=False)
app.command()(when_stopped(f"the report in {{out}} is not finished; {AGAIN}")(demo))
app.command()(finetune)
app.command()(takes_any_model(when_stopped(f"nothing was to be written; {AGAIN}")(evaluate)))
app.command()(takes_any_model(when_stopped(f"what is known so far is in {{out}}; {GOES_ON}")(tune)))
app.command()(takes_any_model(when_stopped(f"results so far are in {{out}}; {GOES_ON}")(compare)))
app.command()(takes_any_model(when_stopped(f"results so far are in {{out}}; {GOES_ON}")(ablate)))
app.command()(takes_any_model(search))
app.command()(when_stopped(f"the report in {{out}} is not finished; {AGAIN}")(report))
app.command()(
    takes_any_model(when_stopped(f"no file was written, and what stood at {{out}} is unharmed; {AGAIN}")(export))
)
app.command()(when_stopped(f"what was measured for {{out}} is not kept; {AGAIN}")(profile))
app.command()(predict)
app.command()(doctor)
app.add_typer(models, name="models")
app.add_typer(data, name="data")
app.add_typer(live, name="live")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    """Faster EEG foundation models by token pooling, without retraining."""
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 it failed, 2 it was asked wrong, 130 it was stopped.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; those of the process if not given.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with sigterm_as_interrupt():
            code = typer.main.get_command(app).main(given, prog_name="zipbrain", standalone_mode=False, obj=given)
        if code == EXIT_CODE:  # typer's answer to Ctrl-C in a command that has no words of its own
            raise Stopped(AGAIN)
        return code if isinstance(code, int) else 0
    except Stopped as stop:
        return _say(f"stopped: {stop}", EXIT_CODE)
    except (typer.Abort, KeyboardInterrupt):
        return _say(f"stopped: {AGAIN}", EXIT_CODE)
    except OptionError as error:
        return _refuse(str(error), 2)
    except ZipbrainError as error:
        return _refuse(str(error), 1)
    except ModuleNotFoundError as missing:
        package, _, part = str(missing.name).partition(".")
        if package == "zipbrain" or part:
            raise
        return _refuse(str(_missing_extra(package, given)), 1)
    except _ClickException as error:
        return _refuse(error.format_message(), error.exit_code)  # type: ignore[attr-defined]
    except Exception as error:
        lack = name_lack(error)
        if lack is None:  # a fault of zipbrain: its traceback is needed
            raise
        return _refuse(lack, 1)


def _missing_extra(package: str, given: Sequence[str]) -> MissingExtra:
    command = next((word for word in given if word in _EXTRAS), "")
    return MissingExtra(package, _EXTRAS.get(command, "all"), f"zipbrain {command}".strip())


def _refuse(message: str, code: int) -> int:
    return _say(f"error: {message}", code)


def _say(message: str, code: int) -> int:
    line = " ".join(message.split())
    try:
        Console(stderr=True).print(
            Text(line, style="bold red"), soft_wrap=True
        )  # one line, however narrow the terminal
    except (MemoryError, OSError):  # where even rich finds no room
        print(printable(line), file=sys.stderr)
    return code

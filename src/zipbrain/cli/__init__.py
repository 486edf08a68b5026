"""Thin doors to all of it: the `zipbrain` command, with one file per subcommand and no torch before it is needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from zipbrain import __version__
from zipbrain.cli.ablate import ablate
from zipbrain.cli.compare import compare
from zipbrain.cli.data import app as data
from zipbrain.cli.demo import demo
from zipbrain.cli.evaluate import evaluate
from zipbrain.cli.export import export
from zipbrain.cli.finetune import finetune
from zipbrain.cli.models import models
from zipbrain.cli.predict import predict
from zipbrain.cli.profile import profile
from zipbrain.cli.report import report
from zipbrain.cli.search import search
from zipbrain.errors import OptionError, ZipbrainError

# Recent typer carries a copy of click, so click's own classes would not catch its errors.
_ClickException: type[BaseException] = typer.BadParameter.__mro__[2]

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
app.command()(demo)
app.command()(finetune)
app.command()(evaluate)
app.command()(compare)
app.command()(ablate)
app.command()(search)
app.command()(report)
app.command()(export)
app.command()(profile)
app.command()(predict)
app.add_typer(models, name="models")
app.add_typer(data, name="data")


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
    """Run the command line and return its exit code: 0 done, 1 it failed, 2 it was asked wrong.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name; those of the process if not given.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = typer.main.get_command(app).main(given, prog_name="zipbrain", standalone_mode=False, obj=given)
        return code if isinstance(code, int) else 0
    except OptionError as error:
        return _refuse(str(error), 2)
    except ZipbrainError as error:
        return _refuse(str(error), 1)
    except (typer.Abort, KeyboardInterrupt):
        return _refuse("stopped", 1)
    except _ClickException as error:
        return _refuse(error.format_message(), error.exit_code)  # type: ignore[attr-defined]


def _refuse(message: str, code: int) -> int:
    line = Text(f"error: {' '.join(message.split())}", style="bold red")
    Console(stderr=True).print(line, soft_wrap=True)  # one line, however narrow the terminal
    return code

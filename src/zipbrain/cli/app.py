"""`App`: a typer app whose help is plain text, with nothing cut off and examples on lines that can be pasted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_EXAMPLE = re.compile(r"^Example: ", re.MULTILINE)


class App(typer.Typer):
    """A typer app of which every command and group shows its help as `split_help` has it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"rich_markup_mode": None, "add_completion": False, "cls": Group, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Decorator that adds a command."""
        return super().command(name, **{"cls": Command, **options})


def split_help(text: str) -> tuple[str, list[str]]:
    """The words of a docstring, and the commands of its lines that begin with ``Example:``."""
    words, *examples = _EXAMPLE.split(text)
    return words.rstrip(), [" ".join(example.split()) for example in examples]


def _write_help(help_text: str | None, formatter: Any) -> None:
    words, examples = split_help(help_text or "")
    with formatter.indentation():
        if words:
            formatter.write_paragraph()
            formatter.write_text(words)
    if examples:
        with formatter.section("Examples" if len(examples) > 1 else "Example"):
            for example in examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class Command(TyperCommand):
    """A command with such help."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write words and examples."""
        _write_help(self.help, formatter)


class Group(TyperGroup):
    """A group of commands with such help."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write words and examples."""
        _write_help(self.help, formatter)

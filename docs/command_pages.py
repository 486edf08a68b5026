"""The reference of the command line, written from the commands themselves when the site is built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from zipbrain.cli import app


def commands(group: Any, words: tuple[str, ...] = ("zipbrain",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group with the words that call it, in order; a group that does something counts too."""
    for name, command in group.commands.items():
        named = (*words, name)
        if not hasattr(command, "commands"):
            yield named, command
            continue
        if command.invoke_without_command:
            yield named, command
        yield from commands(command, named)


def plain(text: str | None) -> str:
    """Help as Markdown: without rich's markup, each paragraph on a line."""
    text = re.sub(r"\\b\n|\[/?(?:bold|dim|italic|red|green|yellow|cyan)\]", "", (text or "").replace("\f", "\n\n"))
    paragraphs = (re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", text))
    return "\n\n".join(re.sub(r"^Example: (.+)$", r"Example: `\1`", part) for part in paragraphs if part)


def option_row(option: Any) -> str:
    """A line of the table of options."""
    is_argument = option.param_type_name == "argument"
    names = [(option.metavar or option.name).upper()] if is_argument else [*option.opts, *option.secondary_opts]
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    told = shown not in (None, False, True, "", ()) and not callable(shown) and not is_argument
    if option.required:
        default = "required"
    else:
        default = f"`{shown}`" if told and not isinstance(option.show_default, str) else (shown if told else "")
    words = plain(getattr(option, "help", "")).replace("|", "\\|").replace("\n\n", " ")
    return f"| {', '.join(f'`{name}`' for name in names)} | {words} | {default} |"


def page() -> str:
    """The whole page."""
    lines = ["# Command line", "", "What `zipbrain COMMAND --help` says, of every command.", ""]
    for words, command in commands(typer.main.get_command(app)):
        lines += [f"## {' '.join(words)}", "", plain(command.help), ""]
        if epilog := plain(getattr(command, "epilog", "")):
            lines += [epilog, ""]
        lines += ["| option | what it does | default |", "|---|---|---|"]
        lines += [option_row(one) for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
        lines.append("")
    return "\n".join(lines)


def write_page(folder: Path) -> None:
    """Write commands.md, unless it is there as it would be."""
    path, text = folder / "commands.md", page()
    if not path.is_file() or path.read_text() != text:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

"""One vocabulary over all commands: an option has one spelling and one meaning, help shows all of it, examples run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from zipbrain.cli import app, main
from zipbrain.cli.app import split_help


def commands(command: Any = None, path: str = "zipbrain") -> Iterator[tuple[str, Any]]:
    """Every command and group with the words that call it."""
    command = typer.main.get_command(app) if command is None else command
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


COMMANDS = dict(commands())
OF_TYPER = ("--install-completion", "--show-completion", "--help", "--version")


def meaning(parameter: Any) -> str:
    """What a help text says before its first colon or semicolon."""
    return re.split(r"[:;] ", parameter.help)[0].rstrip(".")


def used() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """The command, the spellings and the meaning of every option and argument."""
    for path, command in COMMANDS.items():
        for parameter in command.params:
            names = (*parameter.opts, *parameter.secondary_opts)
            if names[0] not in OF_TYPER:
                yield path, tuple(sorted(names)), meaning(parameter)


def conflicts(uses: list[tuple[str, tuple[str, ...], str]]) -> list[str]:
    """Names with two meanings or two sets of spellings, and meanings with two names."""
    by_name, by_meaning = defaultdict(set), defaultdict(set)
    for _, names, words in uses:
        for name in names:
            by_name[name].add((names, words))
        by_meaning[words].add(names)
    found = [f"{name}: {sorted(kinds)}" for name, kinds in by_name.items() if len(kinds) > 1]
    return found + [f"{words}: {sorted(kinds)}" for words, kinds in by_meaning.items() if len(kinds) > 1]


OPTIONS = [use for use in used() if use[1][0].startswith("-")]


def test_a_name_has_one_meaning_and_a_meaning_one_name() -> None:
    assert len({names for _, names, _ in OPTIONS}) > 60
    assert not conflicts(OPTIONS)


def test_arguments_keep_to_the_same_vocabulary() -> None:
    names = defaultdict(set)
    for path, (name, *_), words in used():
        if not name.startswith("-"):
            names[name].add(words)
            assert words, path
    shared = {name: words for name, words in names.items() if len(words) > 1 and name not in ("folder", "checkpoint")}
    assert not shared  # what a folder or a checkpoint is, depends on who wrote it


def test_the_vocabulary_notices_a_second_meaning_and_a_second_name() -> None:
    mine = ("zipbrain x", ("--seed",), "Number of seeds")
    other = ("zipbrain y", ("--random-seed",), "Seed of all draws")
    assert len(conflicts([*OPTIONS, mine])) == 1
    assert len(conflicts([*OPTIONS, other])) == 1


@pytest.mark.parametrize("width", ["80", "120"])
@pytest.mark.parametrize("path", COMMANDS)
def test_help_shows_everything(
    path: str, width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    words = path.split()[1:]
    assert main([*words, "--help"]) == 0
    said = capsys.readouterr().out
    lines, command = said.splitlines(), COMMANDS[path]
    _, examples = split_help(command.help or "")
    assert not re.search(r"\w(\.\.\.|…)(\s*│)?$", said, re.MULTILINE)
    assert not re.search(r"\[/?bold\]|\\\[", said)
    assert all(len(line) <= 80 or line.strip() in examples for line in lines)
    assert bool(examples) or hasattr(command, "commands")
    assert all(f"  {example}" in lines for example in examples)
    flat = re.sub(r"[\s]+", "", said)
    for parameter in command.params:
        default = parameter.default
        if isinstance(default, str | int | float | Path) and not isinstance(default, bool) and str(default):
            assert re.sub(r"\s+", "", f"default: {default}") in flat, parameter.name
        assert (parameter.help or "") == "" or re.sub(r"\s+", "", parameter.help) in flat


# Commands without --json, each with the reason; a new command needs --json or a reason here.
WITHOUT_JSON = {"zipbrain": "prints its help or its version alone"}


def does_something(command: Any) -> bool:
    """False for a group that only holds other commands."""
    return not hasattr(command, "commands") or command.invoke_without_command


@pytest.mark.parametrize("path", [path for path, command in COMMANDS.items() if does_something(command)])
def test_every_command_has_json_and_an_example(path: str) -> None:
    command = COMMANDS[path]
    spellings = {name for parameter in command.params for name in parameter.opts}
    assert ("--json" in spellings) != (path in WITHOUT_JSON)
    assert split_help(command.help or "")[1] or path in WITHOUT_JSON


def test_the_walk_finds_commands_groups_and_commands_that_hold_others() -> None:
    assert {"zipbrain models push", "zipbrain live wall", "zipbrain live"} <= {
        path for path, command in COMMANDS.items() if does_something(command)
    }
    assert not does_something(COMMANDS["zipbrain models"])


def test_a_help_names_only_the_variables_that_matter_for_it_and_each_once() -> None:
    named = {}
    for path, command in COMMANDS.items():
        texts = [command.help or "", *(parameter.help or "" for parameter in command.params)]
        if found := re.findall(r"ZIPBRAIN_[A-Z_<>]+", " ".join(texts)):
            named[path] = sorted(found)
    assert named == {
        "zipbrain data download": ["ZIPBRAIN_<CORPUS>_URL"],
        "zipbrain models download": ["ZIPBRAIN_CACHE", "ZIPBRAIN_OFFLINE", "ZIPBRAIN_WEIGHTS_URL"],
    }


EXAMPLES = [(path, line) for path, command in COMMANDS.items() for line in split_help(command.help or "")[1]]


@pytest.mark.parametrize(("path", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_an_example_is_of_its_command_and_has_the_options_it_is_given(path: str, line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])
    assert words[: len(path.split())] == path.split()
    command, rest = typer.main.get_command(app), words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    command.make_context(line, rest)


QUICK = ("zipbrain data list", "zipbrain models convention", "zipbrain models download", "zipbrain doctor")


@pytest.mark.parametrize("line", QUICK)
def test_a_quick_example_runs_as_it_is_shown(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in [example.partition(" > ")[0] for _, example in EXAMPLES]
    assert main(shlex.split(line)[1:]) == 0
    assert capsys.readouterr().out
    assert main([*shlex.split(line)[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", ".config/fish")])
def test_completion_can_be_installed_and_shown(shell: str, file: str, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    env |= {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}

    def run(*words: str, **more: str) -> str:
        call = [sys.executable, "-m", "zipbrain", *words]
        done = subprocess.run(call, capture_output=True, text=True, env=env | more, check=True)
        return done.stdout

    assert "_ZIPBRAIN_COMPLETE" in run("--show-completion", shell)
    run("--install-completion", shell)
    assert (tmp_path / file).exists()
    typed = "zipbrain compare --rat"
    asked = {"COMP_WORDS": typed, "COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": typed}
    asked["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    assert "--ratio" in run(_ZIPBRAIN_COMPLETE=f"complete_{shell}", **asked)

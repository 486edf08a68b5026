"""Change one operator or number of pooling/ or signal/ at a time and see whether the tests notice: `make mutants`.

Draws seeded random mutants, runs the fitting tests against each in a temporary copy and prints how many were killed and
the diff of every survivor. Outcomes are kept in build/mutants.jsonl: a second run continues, and tries survivors again
with --again.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "build" / "mutants.jsonl"
# Folder of sources -> tests that should notice a change there, in stages: the second runs if the first noticed nothing.
SUITES = {
    "src/zipbrain/pooling/backends/onnx.py": [["tests/export/test_pooling_graph.py"]],
    "src/zipbrain/pooling": [
        [f"tests/pooling/test_{name}.py" for name in ("limits", "schedule", "golden", "methods", "grouping")],
        ["tests/pooling", "tests/seams/test_forward.py", "tests/seams/test_mass.py"],
    ],
    "src/zipbrain/signal": [
        [f"tests/signal/test_{name}.py" for name in ("scaling", "header_and_limits", "bounds", "processing", "edf")],
        ["tests/signal", "tests/edge/test_predict.py"],
    ],
}
SKIPPED = ("backends/triton/", "__init__.py")
SECONDS = 300  # of a processor; a run that takes longer counts as killed
PATIENCE = 20  # times as long on the clock: then the machine is too busy to tell
MEMORY = 6 * 2**30  # bytes that a run may allocate

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*",
}  # fmt: skip
NAMES = {
    "min": "max", "max": "min", "amin": "amax", "amax": "amin", "minimum": "maximum", "maximum": "minimum",
    "floor": "ceil", "ceil": "floor", "argmin": "argmax", "argmax": "argmin", "any": "all", "all": "any",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One replacement in one file."""

    file: str
    start: int  # in bytes of the file
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def diff(self) -> str:
        before = (ROOT / self.file).read_bytes()
        lines = [text.decode().splitlines() for text in (before, self.apply(before))]
        return "\n".join(difflib.unified_diff(*lines, self.file, self.file, lineterm="", n=0))

    @property
    def key(self) -> str:
        before = (ROOT / self.file).read_bytes()
        return hashlib.sha256(f"{self.file}:{self.apply(before).decode()}".encode()).hexdigest()[:16]


class Finder(ast.NodeVisitor):
    """Collects the places of one file where something can be replaced; messages and annotations are left out."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.found = file, source, list[Mutant]()
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def add(self, start: int, end: int, text: str) -> None:
        self.found.append(Mutant(self.file, start, end, text))

    def between(self, left: ast.expr, right: ast.expr, text: str) -> None:
        """Replace the operator that stands between two operands."""
        assert left.end_lineno is not None
        assert left.end_col_offset is not None
        start, end = self.at(left.end_lineno, left.end_col_offset), self.at(right.lineno, right.col_offset)
        gap = self.source[start:end].decode()
        if not set(gap) & set("()#\n"):
            self.add(start, end, f" {text} ")

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self.between(left, right, COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS and not isinstance(node.left, ast.Constant | ast.JoinedStr):
            self.between(node.left, node.right, OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between(left, right, "or" if isinstance(node.op, ast.And) else "and")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            start = self.at(node.lineno, node.col_offset)
            self.add(start, self.at(node.operand.lineno, node.operand.col_offset), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        span = self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)
        if isinstance(node.value, bool):
            self.add(*span, str(not node.value))
        elif isinstance(node.value, int | float):
            self.add(*span, repr(node.value + 1 if isinstance(node.value, int) else node.value * 2 + 1))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in NAMES and node.func.end_lineno is not None and node.func.end_col_offset is not None:
            end = self.at(node.func.end_lineno, node.func.end_col_offset)
            self.add(end - len(name), end, NAMES[name])
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in (*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def skip(self, node: ast.AST) -> None:
        """Leave a part out."""

    visit_Raise = visit_JoinedStr = visit_Import = visit_ImportFrom = visit_Assert = skip


def candidates(folder: str) -> Iterator[Mutant]:
    """Every mutant of the sources in a folder that still compiles."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if any(part in file for part in SKIPPED):
            continue
        source = path.read_bytes()
        finder = Finder(file, source)
        tree = ast.parse(source)
        finder.visit(tree)
        whole = ast.dump(tree)
        for mutant in finder.found:
            try:
                changed = ast.parse(mutant.apply(source))
            except SyntaxError:
                continue
            if ast.dump(changed) != whole:
                yield mutant


def suite(mutant: Mutant) -> list[list[str]]:
    """The tests that should notice this mutant, in stages."""
    return next(tests for folder, tests in SUITES.items() if mutant.file.startswith(folder))


def preload() -> None:
    """Import what tests import, apart from zipbrain itself, so that every run starts from there."""
    for name in ("torch", "numpy", "scipy.signal", "hypothesis", "onnxruntime", "onnx", "mne", "edfio"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run_tests(copy: Path, tests: list[str], log: Path) -> NoReturn:
    """Run tests in a copy of the tree and leave with pytest's exit code; for a forked process."""
    os.chdir(copy)
    sys.path[:0] = [str(copy / "src")]
    os.environ["PYTHONPATH"] = str(copy / "src")  # for processes that tests start
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    with log.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        speed = "not gpu" if any("graph" in name for name in tests) else "not slow and not gpu"
        options = ["-x", "-q", "-m", speed, "-p", "no:cacheprovider"]
        code = pytest.main([*options, "--ignore-glob=*/test_triton*", *tests])
        sys.stdout.flush()
    os._exit(int(code))


def run_suite(tests: list[str]) -> str:
    """Run tests in this process's copy of the tree: what failed, or "" if all passed."""
    copy = own_copy()
    log = copy / "log"
    run = multiprocessing.get_context("fork").Process(target=run_tests, args=(copy, tests, log))
    run.start()
    run.join(PATIENCE * SECONDS)
    if run.is_alive():
        run.kill()
        run.join()
        raise TimeoutError(f"no end after {PATIENCE * SECONDS} s: is the machine busy?")
    if run.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"no end after {SECONDS} s of a processor"
    if run.exitcode == 0:
        return ""
    text = log.read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR tests"))]
    return lines[-1][:160] if lines else f"exit code {run.exitcode}: {text[-300:]}"


def attempt(mutant: Mutant) -> dict[str, Any]:
    """Run the fitting tests against one mutant."""
    target = own_copy() / mutant.file
    source = target.read_bytes()
    target.write_bytes(mutant.apply(source))
    try:
        failed = next(filter(None, map(run_suite, suite(mutant))), "")
    finally:
        target.write_bytes(source)
    return {
        "key": mutant.key, "outcome": "killed" if failed else "survived", "by": failed, "diff": mutant.diff(),
    }  # fmt: skip


@functools.cache
def own_copy() -> Path:
    """A copy of sources and tests for this process."""
    folder = Path(tempfile.mkdtemp())
    for name in ("src", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def known() -> dict[str, dict[str, Any]]:
    """Outcomes of earlier runs by key, the last one of each."""
    if not STORE.exists():
        return {}
    return {row["key"]: row for row in map(json.loads, STORE.read_text().splitlines())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="mutants in all, shared out by candidates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="try survivors of earlier runs again")
    parser.add_argument("--trust", action="store_true", help="don't see first that the tests pass without a mutant")
    parser.add_argument("--only", default="", help="a part of the file's path")
    given = parser.parse_args()

    pool = [mutant for folder in ("src/zipbrain/pooling", "src/zipbrain/signal") for mutant in candidates(folder)]
    drawn = random.Random(given.seed).sample(pool, min(given.count, len(pool)))
    drawn = [mutant for mutant in drawn if given.only in mutant.file]
    print(f"{len(drawn)} of {len(pool)} possible mutants, seed {given.seed}", flush=True)
    before = known()
    open_ = [m for m in drawn if m.key not in before or (given.again and before[m.key]["outcome"] != "killed")]

    preload()
    with tempfile.TemporaryDirectory(prefix="mutants-") as home, ExitStack() as stack:
        tempfile.tempdir = home  # of the copies too: another run's are not ours to remove
        workers = stack.enter_context(ProcessPoolExecutor(given.workers, multiprocessing.get_context("fork")))
        suites = [] if given.trust else [stages[-1] for stages in SUITES.values()]
        for tests, failed in zip(suites, workers.map(run_suite, suites), strict=True):
            if failed:
                print(f"{' '.join(tests)} fails without any mutant: {failed}")
                return 1
        for done in as_completed([workers.submit(attempt, mutant) for mutant in open_]):
            row = done.result()
            STORE.parent.mkdir(exist_ok=True)
            with STORE.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
            print(f"{row['outcome']:9s}{row['diff'].split(maxsplit=2)[1]}  {row['by'][:90]}", flush=True)
    tempfile.tempdir = None

    rows = [known()[mutant.key] for mutant in drawn]
    left = [row for row in rows if row["outcome"] != "killed"]
    for row in left:
        print(f"\n{row['outcome']}\n{row['diff']}")
    print(f"\n{len(rows) - len(left)} of {len(rows)} killed")
    return int(len(left) > len(rows) / 10)


if __name__ == "__main__":
    sys.exit(main())

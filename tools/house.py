"""Size and structure of the package, as numbers that two versions of it can be compared by.

    python tools/house.py                         a table
    python tools/house.py --json > before.json    the same as JSON, with the files of the walks
    python tools/house.py --against before.json   before and after, as a table in Markdown
    python tools/house.py --walk                  also list the files that run during a fit
    python tools/house.py --fragments             also list modules with one importer, functions with many arguments

It measures the `quernel` that Python imports. Counts come from the syntax trees of its files:

- Code lines are those without docstrings, comments and blanks; explaining lines are docstrings and comments.
- A body is a function's without its docstring. Functions compiled by numba are left out.
- A module's importers are the other modules that import it or a name from it, a package's `__init__` among them.
- Arguments are counted without `self`. Public constructors (of classes in some `__all__`) and commands may have many;
  all other functions are counted once more, as internal.

A walk is traced: all files in which a function runs, in any thread, during a default fit of three levels in Python and
during `quernel fit` on a CSV file. What runs on import does not count. A room is a package or public
module of `quernel`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import json
import sys
import tempfile
import threading
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import quernel

SOURCE = Path(quernel.__file__).parent
MAX_ARGUMENTS, MAX_BODY = 7, 50
# Rows of the traced fits: so many that rows are screened.
ROWS = 20_000
NUMBA_DECORATORS = ("njit", "jit", "vectorize", "guvectorize", "compiled")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> dict[str, Path]:
    """Files of the package by dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def count_lines(text: str) -> Counter[str]:
    """Numbers of all lines, of explaining ones (docstrings and comments), of blank ones and of code."""
    explaining = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            explaining.add(token.start[0])
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            explaining |= set(range(body[0].lineno, body[0].end_lineno + 1))
    blank = {k for k, line in enumerate(text.splitlines(), 1) if not line.strip()} - explaining
    total = len(text.splitlines())
    return Counter(lines=total, explaining=len(explaining), blank=len(blank), code=total - len(explaining) - len(blank))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def functions(tree: ast.Module) -> Iterator[Function]:
    """All functions and methods that numba does not compile, nested ones as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = " ".join(ast.unparse(one) for one in node.decorator_list)
            if not any(name in decorators for name in NUMBA_DECORATORS):
                yield node


def body_length(node: Function) -> int:
    """Lines of the body without its docstring."""
    body = node.body[1:] if _is_text(node.body[0]) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def n_arguments(node: Function) -> int:
    """Number of arguments, without `self` and `cls`."""
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def public_names(trees: dict[str, ast.Module]) -> set[str]:
    """Names in the `__all__` of any module."""
    return {
        element.value
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for element in ast.walk(node.value)
        if isinstance(element, ast.Constant) and isinstance(element.value, str)
    }


def internal_functions(trees: dict[str, ast.Module]) -> list[Function]:
    """All functions but constructors of public classes and commands of the command line."""
    from quernel.cli import app

    public = public_names(trees)
    callbacks = [command.callback for command in app.registered_commands if command.callback]
    commands = {(callback.__module__, callback.__name__) for callback in callbacks}
    constructors = {
        id(member)
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name in public
        for member in node.body
        if isinstance(member, ast.FunctionDef) and member.name == "__init__"
    }
    return [
        node
        for name, tree in trees.items()
        for node in functions(tree)
        if id(node) not in constructors and (name, node.name) not in commands
    ]


def importers(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The other modules that import each module, or a name from it."""
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            targets = []
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [target if target in trees else node.module for target in targets]
            elif isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            for target in targets:
                if target in trees and target != name:
                    found.setdefault(target, set()).add(name)
    return found


def fragments(trees: dict[str, ast.Module]) -> list[str]:
    """Lines on the modules with one importer, small ones first, and on internal functions with many arguments."""
    ends = {name: tree.body[-1].end_lineno or 0 for name, tree in trees.items() if tree.body}
    alone = {name: found for name, (found, *others) in importers(trees).items() if not others}
    lines = [f"{ends[name]:4} lines: {name}, of {alone[name]}" for name in sorted(alone, key=lambda name: ends[name])]
    internal = {id(node) for node in internal_functions(trees)}
    many = [(n_arguments(node), name, node) for name, tree in trees.items() for node in functions(tree)]
    return lines + [
        f"{count:4} arguments: {name}.{node.name}"
        for count, name, node in many
        if count > MAX_ARGUMENTS and id(node) in internal
    ]


def walk(action: Callable[[], Any]) -> list[str]:
    """Paths, relative to the package, of the files in which a function runs during `action()`."""
    visited: set[str] = set()

    def record(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # neither a module's body nor a class's
            visited.add(frame.f_code.co_filename)

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(str(Path(file).relative_to(SOURCE)) for file in visited if file.startswith(str(SOURCE)))


def trace_walks() -> dict[str, list[str]]:
    """The walks of `KernelQuantileRegressor.fit` and of `quernel fit`."""
    import numpy as np

    rng = np.random.default_rng(0)
    X = rng.uniform(size=(ROWS, 3))
    y = np.sin(6 * X[:, 0]) + rng.standard_normal(ROWS)
    model = quernel.KernelQuantileRegressor([0.1, 0.5, 0.9], random_state=0)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        data = Path(folder) / "data.csv"
        np.savetxt(data, np.column_stack([X, y]), delimiter=",", header="a,b,c,y", comments="")
        arguments = ["quernel", "fit", str(data), "--target", "y", "--model", str(Path(folder) / "m.quernel")]
        return {"fit": walk(lambda: model.fit(X, y)), "quernel fit": walk(lambda: _run(arguments))}


def _run(arguments: list[str]) -> None:
    """Run the command line in this process; a command that fails would be a shorter walk, so it is an error."""
    from quernel.cli import main

    before, sys.argv = sys.argv, arguments
    try:
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            main()
    except SystemExit as exited:
        if exited.code:
            raise RuntimeError(f"{' '.join(arguments)} failed: {errors.getvalue()}") from None
    finally:
        sys.argv = before


def walk_sizes(walks: dict[str, list[str]]) -> dict[str, str]:
    """Numbers of files and of rooms of each walk."""
    rooms = {name: {file.split("/")[0] for file in files if not file.startswith("_")} for name, files in walks.items()}
    return {f"files (rooms) of {name}": f"{len(files)} ({len(rooms[name])})" for name, files in walks.items()}


def checked_by_mypy(settings: dict[str, Any], lines: dict[str, int]) -> float:
    """The share of lines, given by module, that mypy checks with these settings of pyproject.toml."""

    def matches(name: str, patterns: list[str]) -> bool:
        return any(name == one or name.startswith(f"{one}.") for one in patterns)

    chosen = settings.get("packages", ["quernel"])
    ignored = []
    for override in settings.get("overrides", []):
        if override.get("ignore_errors") or override.get("follow_imports") == "skip":
            patterns = override["module"]
            ignored += [one.removesuffix(".*") for one in ([patterns] if isinstance(patterns, str) else patterns)]
    covered = [name for name in lines if matches(name, chosen) and not matches(name, ignored)]
    return sum(lines[name] for name in covered) / sum(lines.values())


def measure(texts: dict[str, str], walks: dict[str, list[str]]) -> dict[str, int | float | str]:
    """The numbers of the table, from the text of every module and the files of every walk."""
    trees = {name: ast.parse(text) for name, text in texts.items()}
    counts = {name: count_lines(text) for name, text in texts.items()}
    total = sum(counts.values(), Counter())
    sizes = sorted(count["lines"] for count in counts.values())
    every = [node for tree in trees.values() for node in functions(tree)]
    bodies = sorted(body_length(node) for node in every)
    settings = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["tool"]["mypy"]
    many = f"functions with more than {MAX_ARGUMENTS} arguments"
    return {
        "files": len(texts),
        "lines": total["lines"],
        "code lines": total["code"],
        "explaining lines, share": round(total["explaining"] / total["lines"], 3),
        "file, median / largest": f"{median(sizes):.0f} / {sizes[-1]}",
        "body, median / p90 / longest": f"{median(bodies):.0f} / {quantiles(bodies, n=10)[-1]:.0f} / {bodies[-1]}",
        f"bodies above {MAX_BODY} lines": sum(length > MAX_BODY for length in bodies),
        "modules with one importer": sum(len(found) == 1 for found in importers(trees).values()),
        **walk_sizes(walks),
        many: sum(n_arguments(node) > MAX_ARGUMENTS for node in every),
        f"{many}, internal": sum(n_arguments(node) > MAX_ARGUMENTS for node in internal_functions(trees)),
        "Any in annotations": sum(
            isinstance(node, ast.Name) and node.id == "Any" for tree in trees.values() for node in ast.walk(tree)
        ),
        "lines checked by mypy, share": round(
            checked_by_mypy(settings, {name: count["lines"] for name, count in counts.items()}), 3
        ),
    }


def show(value: float | str) -> str:
    """A number with separators of thousands, or text as it is."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def compare(before: dict[str, Any], after: dict[str, Any]) -> str:
    """A Markdown table of two sets of numbers; "-" stands for what one of them lacks."""
    lines = ["| | before | after |", "|---|---:|---:|"]
    for name in [*after, *(name for name in before if name not in after)]:
        lines.append(f"| {name} | {show(before.get(name, '-'))} | {show(after.get(name, '-'))} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print numbers and walks as JSON")
    parser.add_argument("--against", type=Path, metavar="OTHER.json", help="compare with what --json printed earlier")
    parser.add_argument("--walk", action="store_true", help="also list the files of the walks")
    parser.add_argument("--fragments", action="store_true", help="also list what could be merged or made simpler")
    options = parser.parse_args()
    walks = trace_walks()
    numbers = measure({name: path.read_text() for name, path in modules().items()}, walks)
    if options.json:
        print(json.dumps({"numbers": numbers, "walks": walks}, indent=1))
        return
    if options.against:
        other = json.loads(options.against.read_text())
        print(compare(other["numbers"] | walk_sizes(other["walks"]), numbers))
    else:
        width = max(map(len, numbers))
        for name, value in numbers.items():
            print(f"{name:{width}}  {show(value)}")
    for name, files in walks.items() if options.walk else ():
        print(f"\n{name}:\n  " + "\n  ".join(files))
    if options.fragments:
        print("\n" + "\n".join(fragments({name: ast.parse(path.read_text()) for name, path in modules().items()})))


if __name__ == "__main__":
    main()

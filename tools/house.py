"""How easy the library is to read, in numbers: sizes, imports, and the files that one fit walks through.

    python tools/house.py                   the tree that is installed
    python tools/house.py --json            for comparing two trees
    python tools/house.py --walk            also list the files of the two walks

Walks are traced, not guessed: every file of quernel in which a function runs while a model is fitted (imports do not
count), in a first fit of each kind, in all threads.
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
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import quernel

SOURCE = Path(quernel.__file__).parent
MANY_ARGUMENTS = 7
# So many that not all of them are solved for at once.
ROWS = 20_000
COMPILED = ("njit", "jit", "vectorize", "guvectorize", "compiled")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> dict[str, Path]:
    """Dotted names and files."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def count_lines(text: str) -> Counter[str]:
    """Lines of code, of docstrings and comments, and blank ones."""
    explaining = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            explaining.add(token.start[0])
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):  # docstrings, also those below attributes
            explaining |= set(range(body[0].lineno, body[0].end_lineno + 1))
    blank = {k for k, line in enumerate(text.splitlines(), 1) if not line.strip()} - explaining
    total = len(text.splitlines())
    return Counter(lines=total, explaining=len(explaining), blank=len(blank), code=total - len(explaining) - len(blank))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def functions(tree: ast.Module) -> Iterator[Function]:
    """All functions, but for those that are compiled."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = " ".join(ast.unparse(one) for one in node.decorator_list)
            if not any(word in decorators for word in COMPILED):
                yield node


def body_length(node: Function) -> int:
    """Lines of the body without its docstring."""
    body = node.body[1:] if _is_text(node.body[0]) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def n_arguments(node: Function) -> int:
    """Arguments, `self` left out."""
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def importers(trees: dict[str, ast.Module]) -> Counter[str]:
    """How many other modules import each module; what a package re-exports counts for the package."""
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
    return Counter({target: len(names) for target, names in found.items()})


def walk(action: Callable[[], Any]) -> list[str]:
    """The files of quernel in which a function runs."""
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
    """Of a default fit of three levels in Python, and of `quernel fit` on a CSV file."""
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
    from quernel.cli import main

    before, sys.argv = sys.argv, arguments
    try:
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            main()
    finally:
        sys.argv = before


def checked_by_mypy(names: dict[str, Path], lines: dict[str, int]) -> float:
    """The share of lines in packages that mypy is told to check."""
    import tomllib

    settings = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["tool"]["mypy"]
    chosen = settings.get("packages", ["quernel"])
    covered = [name for name in names if any(name == one or name.startswith(f"{one}.") for one in chosen)]
    return sum(lines[name] for name in covered) / sum(lines.values())


def measure() -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The numbers, and the files of the walks."""
    names = modules()
    texts = {name: path.read_text() for name, path in names.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    counts = {name: count_lines(text) for name, text in texts.items()}
    total = sum(counts.values(), Counter())
    sizes = sorted(count["lines"] for count in counts.values())
    every = [node for tree in trees.values() for node in functions(tree)]
    bodies = sorted(body_length(node) for node in every)
    walks = trace_walks()
    rooms = {name: {file.split("/")[0] for file in files} for name, files in walks.items()}
    annotations = sum(isinstance(n, ast.Name) and n.id == "Any" for tree in trees.values() for n in ast.walk(tree))
    numbers = {
        "files": len(names),
        "lines": total["lines"],
        "code lines": total["code"],
        "explaining lines, share": round(total["explaining"] / total["lines"], 3),
        "file, median / largest": f"{median(sizes):.0f} / {sizes[-1]}",
        "body, median / p90 / longest": f"{median(bodies):.0f} / {quantiles(bodies, n=10)[-1]:.0f} / {bodies[-1]}",
        "bodies above 50 lines": sum(length > 50 for length in bodies),
        "modules with one importer": sum(count == 1 for count in importers(trees).values()),
        **{f"files (rooms) of {name}": f"{len(files)} ({len(rooms[name])})" for name, files in walks.items()},
        f"functions with more than {MANY_ARGUMENTS} arguments": sum(n_arguments(one) > MANY_ARGUMENTS for one in every),
        "Any in annotations": annotations,
        "lines checked by mypy, share": round(
            checked_by_mypy(names, {name: count["lines"] for name, count in counts.items()}), 3
        ),
    }
    return numbers, walks


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--walk", action="store_true")
    options = parser.parse_args()
    numbers, walks = measure()
    if options.json:
        print(json.dumps({"numbers": numbers, "walks": walks}, indent=1))
        return
    width = max(map(len, numbers))
    for name, value in numbers.items():
        print(f"{name:{width}}  {value:,}" if isinstance(value, int) else f"{name:{width}}  {value}")
    for name, files in walks.items() if options.walk else ():
        print(f"\n{name}:\n  " + "\n  ".join(files))


if __name__ == "__main__":
    main()

"""`python -m quernel.bench.child module:NAME task answer`: fit a task with a system and write the outcome as JSON."""

from __future__ import annotations

import json
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from quernel.bench.machine import installed
from quernel.bench.task import Answer, System, Task


def load(system: str) -> System:
    """Import the system given as "module:NAME"."""
    module, name = system.split(":")
    return getattr(import_module(module), name)


def outcome(system: System, task: Task) -> dict[str, Any]:
    """Fit the task and return the fields of an `Outcome` as plain values; exceptions become a status."""
    task.prepare()
    try:
        answer = system.fit(task)
    except ImportError:
        return {"system": system.name, "status": "not installed"}
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return {"system": system.name, "status": f"failed: {lines[-1]}"}
    return {
        "system": system.name,
        "status": "done",
        "version": answer.version or installed(system.package),
        "seconds": answer.seconds,
        "note": answer.note,
    } | _score(task, answer)


def _score(task: Task, answer: Answer) -> dict[str, float]:
    """Return the objective F in quernel's scaling, its loss term and, given a duality gap, a lower bound on F."""
    if answer.fitted is None or answer.penalty is None:
        return {}
    objective, loss = task.objective(answer.fitted, answer.penalty), task.objective(answer.fitted, 0.0)
    if answer.gap is None:
        return {"objective": objective, "loss": loss}
    # A relative gap is one of max(F, F0 / 1000), so that it stays meaningful where the fit is nearly perfect.
    gap = answer.gap * max(objective, task.null_objective() / 1000)
    return {"objective": objective, "loss": loss, "lower_bound": objective - gap}


def main() -> None:
    """Run the request on the command line."""
    system, task, answer = sys.argv[1:]
    warnings.simplefilter("ignore")
    Path(answer).write_text(json.dumps(outcome(load(system), Task(**json.loads(task)))))


if __name__ == "__main__":
    main()

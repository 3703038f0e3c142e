"""The paper's Table 1, printed from `quernel.theory.METHODS`."""

from __future__ import annotations

import numpy as np

from quernel.paper.experiment import Experiment, Row, Size, Table, Task
from quernel.paper.sheet import Section, Sheet, Verdict
from quernel.theory import METHODS
from quernel.theory.methods import Method

# METHODS holds functions, not typeset formulas: they are shown by their values, which tell all rows of the table apart.
REALIZABLE, AGNOSTIC = (0.5, 0.5), (0.4, 0.5)
PROMISE = ("thm2", "thm1", "cor1")


def tasks(size: Size) -> list[Task]:  # noqa: ARG001 (a table of formulas has one size)
    """None: the table is data."""
    return []


def measure(task: Task, rng: np.random.Generator) -> list[Row]:  # noqa: ARG001
    """Nothing."""
    return []


def present(table: Table, sheet: Sheet) -> Section:  # noqa: ARG001
    """Table 1, with its formulas evaluated at a realizable and an agnostic point."""
    listed = [method for method in METHODS.values() if method.in_table]
    columns = {"method": "", "source": "", "loss": "", "conditions": ""}
    for r, gamma in (REALIZABLE, AGNOSTIC):
        columns |= {f"c at r={r:g}, gamma={gamma:g}": ".3f", f"rate at r={r:g}, gamma={gamma:g}": ".3f"}
    lines = [
        [method.name, method.source, method.loss, method.conditions]
        + [value for point in (REALIZABLE, AGNOSTIC) for value in _at(method, *point)]
        for method in listed
    ]
    item = sheet.table(
        columns,
        lines,
        "tab1-methods",
        "Table 1 from quernel.theory.METHODS: M = |D|^c random features give a squared error of |D|^-rate, logarithms "
        "left out. A dash: no random features, or outside of the conditions. The line KQR-RF is shown at compatibility "
        "1, where it equals uniform sampling.",
    )
    others = [method for key, method in METHODS.items() if method.in_table and key not in PROMISE]
    fastest = max(method.learning_rate(*REALIZABLE) for method in others)
    ours = METHODS["cor1"]
    lipschitz = [m for m in others if m.loss not in ("squared", "check") and m.covers(*REALIZABLE)]
    agnostic = [m for m in others if m.loss != "squared" and m.covers(*AGNOSTIC)]
    text = (
        f"At r = gamma = 1/2 KQR-RF reaches the rate {ours.learning_rate(*REALIZABLE):.3f}, the best of the table "
        f"({fastest:.3f}); the earlier results for Lipschitz losses with random features reach at most "
        f"{max(m.learning_rate(*REALIZABLE) for m in lipschitz):.3f}. In the agnostic case {len(agnostic)} of the "
        "earlier results for other losses than the squared one says anything."
    )
    reported = [
        "Table 1 of the paper sets the conditions, numbers of random features and learning rates of KRR, KRR-RF, KQR "
        "and Lipschitz losses with random features beside its own. The KRR-RF lines print M with a minus sign in the "
        "exponent; that is a slip, and left out here.",
    ]
    holds = ours.learning_rate(*REALIZABLE) >= fastest and not agnostic
    return Section(reported, [item], [Verdict(text, holds)])


def _at(method: Method, r: float, gamma: float) -> tuple[float | None, float | None]:
    if not method.covers(r, gamma):
        return None, None
    return method.feature_exponent(r, gamma), method.learning_rate(r, gamma)


TABLE1 = Experiment("tab1", "tab.1", "Conditions, features and rates of the methods", tasks, measure, present)

"""The paper's Table 1, printed from `quernel.theory.METHODS`."""

from __future__ import annotations

from quernel.paper.experiment import Experiment, Table, no_rows, no_tasks
from quernel.paper.sheet import Section, Sheet, Verdict
from quernel.theory import METHODS
from quernel.theory.methods import Method

RATE = "2r/(2r+gamma)"
# The exponents of METHODS as text, (c, rate); the tests evaluate them beside the functions.
FORMULAS: dict[str, tuple[str | None, str]] = {
    "krr_caponnetto": (None, RATE),
    "krr_zhang": (None, RATE),
    "krr_rf_uniform_rudi": ("((2r-1)gamma+1)/(2r+gamma)", RATE),
    "krr_rf_leverage_rudi": ("(2r+gamma-1)/(2r+gamma)", RATE),
    "krr_rf_uniform_li": ("1/(2r+gamma)", RATE),
    "krr_rf_leverage_li": ("gamma/(2r+gamma)", RATE),
    "kqr_lian": (None, RATE),
    "lip_rf_uniform_rahimi": ("1", "1/2"),
    "lip_rf_leverage_bach": ("gamma/2", "1/2"),
    "lip_rf_uniform_li": ("1", "1/2"),
    "lip_rf_leverage_li": ("gamma/2", "1/2"),
    "ksvm_rf_sun": ("2gamma/(2gamma+1)", "1/(2gamma+1)"),
    "thm2": ("alpha/(2r+gamma) if r < 1/2 else ((2r-1)(1+gamma-alpha)+alpha)/(2r+gamma)", RATE),
    "thm1": ("1/(2r+gamma) if r < 1/2 else ((2r-1)gamma+1)/(2r+gamma)", RATE),
    "cor1": ("gamma/(2r+gamma) if r < 1/2 else (2r+gamma-1)/(2r+gamma)", RATE),
}
REALIZABLE, AGNOSTIC = (0.5, 0.5), (0.4, 0.5)
PROMISE = ("thm2", "thm1", "cor1")


def present(table: Table, sheet: Sheet) -> Section:  # noqa: ARG001
    """Table 1, with its formulas evaluated at a realizable and an agnostic point."""
    listed = {key: method for key, method in METHODS.items() if method.in_table}
    columns = {"method": "", "source": "", "conditions": "", "c in M = |D|^c": "", "rate": ""}
    for r, gamma in (REALIZABLE, AGNOSTIC):
        columns |= {f"c at r={r:g}, gamma={gamma:g}": ".3f", f"rate at r={r:g}, gamma={gamma:g}": ".3f"}
    lines = [
        [method.name, method.source, method.conditions, *FORMULAS[key]]
        + [value for point in (REALIZABLE, AGNOSTIC) for value in _at(method, *point)]
        for key, method in listed.items()
    ]
    item = sheet.table(
        columns,
        lines,
        "tab1-methods",
        "Table 1 from quernel.theory.METHODS: M = |D|^c random features give a squared error of |D|^-rate, logarithms "
        "left out; alpha is the compatibility of the features. The last columns are the formulas at a realizable and "
        "an agnostic point, KQR-RF at alpha = 1. A dash: no random features, or outside of the conditions.",
    )
    others = [method for key, method in METHODS.items() if method.in_table and key not in PROMISE]
    fastest = max(method.learning_rate(*REALIZABLE) for method in others)
    ours = METHODS["cor1"]
    lipschitz = [m for m in others if m.loss not in ("squared", "check") and m.covers(*REALIZABLE)]
    agnostic = [m for m in others if m.loss != "squared" and m.covers(*AGNOSTIC)]
    covering = f"{len(agnostic)} say something" if agnostic else "none says anything"
    text = (
        f"At r = gamma = 1/2 KQR-RF reaches the rate {ours.learning_rate(*REALIZABLE):.3f}, the best of the table "
        f"({fastest:.3f}); the earlier results for Lipschitz losses with random features reach at most "
        f"{max(m.learning_rate(*REALIZABLE) for m in lipschitz):.3f}. Of the earlier results for "
        f"other losses than the squared one, {covering} in the agnostic case."
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


TABLE1 = Experiment("tab1", "tab.1", "Conditions, features and rates of the methods", no_tasks, no_rows, present)

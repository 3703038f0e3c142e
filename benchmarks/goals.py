"""A line of the speed table: what was measured, beside its goal."""

Row = dict[str, object]
REPEATS = 3
LEVELS = [0.1, 0.25, 0.5, 0.75, 0.9]


def at_most(what: str, ours: float, baseline: float, goal: float) -> Row:
    """A time ratio that should be small."""
    ratio = ours / baseline
    return {
        "what": what, "ratio": ratio, "unit": "x the time", "goal": f"<= {goal:g}", "met": ratio <= goal,
        "ours": ours, "baseline": baseline,
    }  # fmt: skip


def times_faster(what: str, ours: float, baseline: float, goal: float) -> Row:
    """A speed-up that should be large."""
    ratio = baseline / ours
    return {
        "what": what, "ratio": ratio, "unit": "x faster", "goal": f">= {goal:g}", "met": ratio >= goal,
        "ours": ours, "baseline": baseline,
    }  # fmt: skip


def reported(what: str, ours: float, baseline: float) -> Row:
    """A speed-up without a goal."""
    return {**times_faster(what, ours, baseline, 1), "goal": "reported"}


def not_measured(what: str, goal: str, why: str, ours: float | None = None) -> Row:
    """A line for which there was nobody to compare with."""
    return {
        "what": what, "ratio": None, "unit": why, "goal": goal, "met": None, "ours": ours, "baseline": None,
    }  # fmt: skip

"""An attack on the solvers by random nasty problems, each judged against an independent optimum.

    python -m benchmarks.attack --problems 2000 --seed 0 --out attack.jsonl

Every problem (`attack_problems`) is fitted by a public estimator; min F is bracketed by an oracle that shares no code
with the library (`attack_optimum`), all values of F are evaluated in extended precision (`attack_losses`). Failures:

- *false certificate*: F - min F is larger than the duality gap that was reported;
- *unwarned miss*: the relative gap is truly above `tol`, without a ConvergenceWarning;
- *worse than null*: F is larger than that of the best constant (of zero without an intercept);
- *crash*: an exception other than a ValueError that refuses the data, or results that are not finite.

What the bracket cannot decide is counted apart. One JSON line per problem is appended to the file: a run that was
interrupted continues where it stopped. `--only K` repeats problem K and prints what it found.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.attack_coupled import bracket_joint, bracket_multinomial, multinomial_null, multinomial_objective
from benchmarks.attack_losses import ROUNDING, Extended, LossByHand, Sample
from benchmarks.attack_optimum import Bracket, bracket_optimum
from benchmarks.attack_problems import Answer, Attack, draw_attack, solve_attack

Array = NDArray[np.floating]
FAILURES = ("false certificate", "unwarned miss", "worse than null", "crash")
# The last digits of an evaluation: by how much, relatively, F of the best constant may be missed.
LAST_DIGITS = 1e-12


class Verdict:
    """Judges one number F against min F, which lies in a bracket, and the null model's F0: exact, and with
    its constant off by one last digit."""

    def __init__(self, objective: Array, nulls: tuple[Array, Array], gap: float, tol: float, warned: bool) -> None:
        self.objective, (self.null, self.null_in_doubles), self.tol = objective, nulls, tol
        null = self.null
        self.scale = max(objective, null / 1000)
        self.claimed = Extended(gap) * self.scale
        self.warned = warned and not gap <= tol

    def is_settled(self, bracket: Bracket) -> bool:
        """Whether the bracket is narrow enough to decide on every kind of failure."""
        return not self.judge(bracket)[1]

    def distances(self, bracket: Bracket) -> tuple[Array, Array]:
        """F - min F is at least and at most this."""
        return self.objective * (1 - ROUNDING) - bracket.high, self.objective - bracket.low

    def judge(self, bracket: Bracket) -> tuple[list[str], list[str]]:
        """(failures that are certain, failures that the bracket can neither prove nor rule out)."""
        certain, open_ = [], []
        if bracket.low > bracket.high:
            return certain, ["a contradiction of the oracle"]
        least, most = self.distances(bracket)
        limits = {"false certificate": self.claimed}
        if not self.warned:
            limits["unwarned miss"] = Extended(self.tol) * self.scale
        for name, limit in limits.items():
            if least > limit:
                certain.append(name)
            elif most > limit:
                open_.append(name)
        if self.objective > self.null_in_doubles * (1 + Extended(LAST_DIGITS)):
            certain.append("worse than null")
        return certain, open_

    def describe(self, bracket: Bracket) -> dict[str, Any]:
        certain, open_ = self.judge(bracket)
        (least, most), scale = self.distances(bracket), self.scale
        return {
            "failures": certain, "open": open_, "F": float(self.objective), "F0": float(self.null),
            "claimed": _ratio(self.claimed, scale), "least": _ratio(least, scale), "most": _ratio(most, scale),
            "warned": self.warned,
        }  # fmt: skip


def _ratio(part: Array, whole: Array) -> float:
    return float(part / whole) if whole > 0 else float(part)


def judge_attack(attack: Attack, answer: Answer) -> list[dict[str, Any]]:
    """One dict of `Verdict.describe` for every optimisation problem of the attack."""
    if answer.error:
        return [{"failures": [] if answer.refused else ["crash"], "open": [], "error": answer.error}]
    numbers = answer.coef, answer.intercept, answer.objective, answer.gap
    if not all(np.isfinite(part).all() for part in numbers):
        return [{"failures": ["crash"], "open": [], "error": "results are not finite"}]
    if attack.solver == "multinomial" and len(attack.classes) > 2:
        return [_judge_multinomial(attack, answer)]
    if attack.solver == "joint":
        return [_judge_joint(attack, answer)]
    return [_judge_column(attack, answer, *column) for column in _columns(attack)]


def _sample(attack: Attack, y: Array) -> Sample:
    gram = None if attack.solver != "exact" else _kernel_matrix(attack)
    features = attack.X if gram is None else None
    margin = attack.loss.margin
    return Sample.from_rows(y, attack.weight, attack.alpha, attack.intercept, features, gram, margin=margin)


def _kernel_matrix(attack: Attack) -> Array:
    """K in 80-bit numbers, from its formula."""
    X, h = attack.X.astype(Extended), Extended(attack.bandwidth)
    total = np.zeros((len(X), len(X)), dtype=Extended)
    for column in X.T:
        step = np.abs(column[:, None] - column)
        total += (step / h) ** 2 / 2 if attack.kernel == "gaussian" else step / h
    return np.exp(-total)


def _columns(attack: Attack) -> Iterator[tuple[int, LossByHand, Array]]:
    """(index, loss, target) of problems that are solved side by side."""
    if attack.loss.margin:
        classes = attack.classes
        for k, label in enumerate(classes[1:] if len(classes) == 2 else classes):
            yield k, attack.loss, np.where(attack.y == label, 1.0, -1.0)
    elif attack.loss.name == "pinball":
        for k, level in enumerate(attack.levels):
            yield k, replace(attack.loss, level=level), attack.y
    else:
        yield 0, attack.loss, attack.y


def _judge_column(attack: Attack, answer: Answer, k: int, loss: LossByHand, y: Array) -> dict[str, Any]:
    sample = _sample(attack, y)
    returned = sample
    if answer.features is not None:
        returned = Sample.from_rows(
            y, attack.weight, attack.alpha, attack.intercept, answer.features, margin=loss.margin
        )
    objective = returned.objective(loss, answer.coef[:, k], answer.intercept[k])
    verdict = Verdict(objective, sample.null_objective(loss), answer.gap[k], attack.tol, answer.warned)
    bracket = bracket_optimum(sample, loss, verdict.is_settled)
    return verdict.describe(bracket) | {"column": k}


def _judge_joint(attack: Attack, answer: Answer) -> dict[str, Any]:
    """The sum over levels; every level's gap is a share of that of the sum."""
    sample = _sample(attack, attack.y)
    laws = [replace(attack.loss, level=level) for level in attack.levels]
    values = [sample.objective(law, answer.coef[:, k], answer.intercept[k]) for k, law in enumerate(laws)]
    nulls = [sample.null_objective(law) for law in laws]
    scales = [max(value, null / 1000) for value, (null, _) in zip(values, nulls, strict=True)]
    claimed = sum(Extended(gap) * scale for gap, scale in zip(answer.gap, scales, strict=True))
    total = sum(null for null, _ in nulls), sum(null for _, null in nulls)
    verdict = Verdict(sum(values), total, float(np.max(answer.gap)), attack.tol, answer.warned)
    verdict.claimed, verdict.scale = claimed, sum(scales)
    bracket = bracket_joint(sample, laws, verdict.is_settled)
    return verdict.describe(bracket)


def _judge_multinomial(attack: Attack, answer: Answer) -> dict[str, Any]:
    codes = np.searchsorted(attack.classes, attack.y)
    kept = codes < len(attack.classes)
    sample = Sample.from_rows(
        codes[kept].astype(float), None if attack.weight is None else attack.weight[kept], attack.alpha,
        attack.intercept, attack.X[kept], margin=True,
    )  # fmt: skip
    objective = multinomial_objective(sample, answer.coef, answer.intercept)
    null = multinomial_null(sample, len(attack.classes))
    verdict = Verdict(objective, (null, null), answer.gap[0], attack.tol, answer.warned)
    return verdict.describe(bracket_multinomial(sample, len(attack.classes), verdict.is_settled))


def run_attack(seed: int, number: int) -> dict[str, Any]:
    """The record of one problem: what it was, its verdicts, and the seconds of fit and judgement."""
    attack = draw_attack(seed, number)
    start = time.perf_counter()
    answer = solve_attack(attack)
    fitted = time.perf_counter()
    try:
        verdicts = judge_attack(attack, answer)
    except (ArithmeticError, ValueError) as error:  # the oracle's, which is no failure of the fit
        verdicts = [{"failures": [], "open": [f"the oracle failed: {error!r}"]}]
    return {
        "seed": seed, "number": number, "solver": attack.solver, "loss": attack.loss.name, "n": len(attack.y),
        "M": attack.X.shape[1], "alpha": attack.alpha, "levels": attack.levels, "length": attack.loss.length,
        "intercept": attack.intercept, "tol": attack.tol, "max_iter": attack.max_iter, **attack.traits,
        "stopped": answer.stopped_by, "verdicts": verdicts, "fit_seconds": round(fitted - start, 3),
        "judge_seconds": round(time.perf_counter() - fitted, 3),
    }  # fmt: skip


def read_records(path: Path, seed: int) -> dict[int, dict[str, Any]]:
    """Records of this seed by number; a line that was cut by an interruption is dropped."""
    records = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record["seed"] == seed:
            records[record["number"]] = record
    return records


def count(records: list[dict[str, Any]]) -> dict[str, int]:
    """Problems, judged columns, failures by kind, undecided columns, refused problems."""
    verdicts = [verdict for record in records for verdict in record["verdicts"]]
    totals = {"problems": len(records), "judged": len(verdicts)}
    for name in FAILURES:
        totals[name] = sum(name in verdict["failures"] for verdict in verdicts)
    totals["unsettled"] = sum(bool(verdict["open"]) for verdict in verdicts)
    totals["refused"] = sum("error" in verdict and not verdict["failures"] for verdict in verdicts)
    totals["warned"] = sum(verdict.get("warned", False) for verdict in verdicts)
    return totals


def format_table(records: list[dict[str, Any]]) -> str:
    """Counts by loss and by solver."""
    groups = [(key, name) for key in ("loss", "solver") for name in sorted({record[key] for record in records})]
    rows = [(name, count([record for record in records if record[key] == name])) for key, name in groups]
    if not rows:
        return ""
    names = list(rows[0][1])
    lines = [" " * 20 + "".join(f"{name:>19}" for name in names)]
    return "\n".join(lines + [f"{name:<20}" + "".join(f"{totals[key]:>19}" for key in names) for name, totals in rows])


def format_totals(records: list[dict[str, Any]]) -> str:
    """The last line."""
    return ", ".join(f"{number:,} {name}" for name, number in count(records).items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("attack.jsonl"))
    parser.add_argument("--only", type=int, metavar="K", help="repeat problem K and print its record")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th problem from the I-th, for processes")
    options = parser.parse_args()
    if options.only is not None:
        print(json.dumps(run_attack(options.seed, options.only), indent=1))
        return
    records = read_records(options.out, options.seed)
    part, parts = map(int, options.part.split("/"))
    try:
        with options.out.open("a") as file:
            if file.tell() and not options.out.read_bytes().endswith(b"\n"):
                file.write("\n")  # after a line that was cut
            for number in range(part - 1, options.problems, parts):
                if number in records:
                    continue
                records[number] = record = run_attack(options.seed, number)
                file.write(json.dumps(record) + "\n")
                file.flush()
                for verdict in record["verdicts"]:
                    if verdict["failures"]:
                        print(number, record["solver"], record["loss"], verdict, flush=True)
    except KeyboardInterrupt:
        print("interrupted; the same command continues")
    done = [record for number, record in sorted(records.items()) if number < options.problems]
    print(format_table(done))
    print(format_totals(done))


if __name__ == "__main__":
    main()

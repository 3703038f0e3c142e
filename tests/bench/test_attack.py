"""The attack's judge: problems come back the same, its optimum is that of others, and planted faults are caught."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from benchmarks import attack
from benchmarks.attack_coupled import bracket_joint, bracket_multinomial
from benchmarks.attack_losses import MARGIN, REGRESSION, LossByHand, Sample
from benchmarks.attack_optimum import bracket_optimum
from benchmarks.attack_problems import Attack, draw_attack, solve_attack

from support.loss_optima import LENGTH, LEVEL, optimum

NAMES = (*REGRESSION, *MARGIN)


def never(bracket):
    """Go on narrowing to the end."""
    return False


def small_rows(name, seed=0, n=40, M=6):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, M))
    y = X[:, 0] + rng.standard_normal(n)
    return X, np.sign(y) if name in MARGIN else y, rng.uniform(0.1, 2, n)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("intercept", [True, False])
def test_the_bracket_is_narrow_and_holds_what_others_find(name, intercept):
    X, y, weight = small_rows(name)
    sample = Sample.from_rows(y, weight, 1e-3, intercept, X, margin=name in MARGIN)
    bracket = bracket_optimum(sample, LossByHand(name, LEVEL, LENGTH), never)
    assert 0 <= bracket.high - bracket.low <= 1e-15 * bracket.high
    others = optimum(name, X, y, 1e-3, weight, intercept)
    assert float(bracket.low) == pytest.approx(min(others), rel=1e-7)
    assert min(others) >= float(bracket.low) * (1 - 1e-12)


def test_few_rows_and_a_kernel_matrix_have_the_bracket_of_features():
    X, y, weight = small_rows("pinball", n=8, M=30)
    loss = LossByHand("pinball", 0.2)
    wide = bracket_optimum(Sample.from_rows(y, weight, 1e-2, True, X), loss, never)
    gram = X.astype(np.longdouble) @ X.T.astype(np.longdouble)
    kernel = bracket_optimum(Sample.from_rows(y, weight, 1e-2, True, gram=gram), loss, never)
    for bracket in (wide, kernel):
        assert 0 <= bracket.high - bracket.low <= 1e-15 * bracket.high
    assert float(wide.high) == pytest.approx(float(kernel.high), rel=1e-14)


def test_coupled_levels_and_classes_are_bracketed():
    X, y, weight = small_rows("pinball", n=30, M=10)
    sample = Sample.from_rows(y, weight, 1e-3, True, X)
    laws = [LossByHand("pinball", level) for level in (0.4, 0.5, 0.6)]
    joint = bracket_joint(sample, laws, never)
    apart = sum(bracket_optimum(sample, law, never).high for law in laws)
    assert 0 <= joint.high - joint.low <= 1e-12 * joint.high
    assert joint.low > 1.001 * apart, "these levels cross"
    codes = np.digitize(y, [-0.5, 0.5]).astype(float)
    classes = bracket_multinomial(Sample.from_rows(codes, weight, 1e-3, True, X, margin=True), 3, never)
    assert 0 <= classes.high - classes.low <= 1e-14 * classes.high


def test_an_objective_far_from_zero_has_all_its_digits():
    """y = 1e12 + noise, features at 1e9: against exact fractions."""
    rng = np.random.default_rng(0)
    X, y = 1e9 + rng.standard_normal((6, 3)), 1e12 + rng.standard_normal(6)
    coef, intercept, weight = rng.standard_normal(3), 1e12 - 1.5e9, np.array([1.0, 1e-9, 3.0, 2.0, 1e6, 0.5])
    level, alpha = 0.3, 1e-7
    total = Fraction(0)
    for x, target, share in zip(X, y, weight, strict=True):
        f = sum(Fraction(a) * Fraction(u) for a, u in zip(x, coef, strict=True)) + Fraction(intercept)
        r = Fraction(target) - f
        total += Fraction(share) * max(Fraction(level) * r, (Fraction(level) - 1) * r)
    exact = total / sum(map(Fraction, weight)) + Fraction(alpha) * sum(Fraction(u) ** 2 for u in coef)
    found = Sample.from_rows(y, weight, alpha, True, X).objective(LossByHand("pinball", level), coef, intercept)
    high = float(found)
    assert abs(Fraction(high) + Fraction(float(found - np.longdouble(high))) - exact) <= Fraction(1e-17) * exact


def a_problem(**changes):
    X, y, weight = small_rows("pinball", n=60)
    problem = Attack(0, "newton", LossByHand("pinball", 0.2), (0.2, 0.7), X, y, weight, 1e-2, True, 1e-6, 1000)
    return replace(problem, **changes)


def failures(problem, answer):
    return {name for verdict in attack.judge_attack(problem, answer) for name in verdict["failures"]}


def test_planted_faults_are_caught():
    problem = a_problem(tol=1e-3)
    answer = solve_attack(problem)
    assert failures(problem, answer) == set()
    early = a_problem(max_iter=2, tol=1e-9)
    short = solve_attack(early)
    assert short.warned
    assert failures(early, short) == set()
    assert failures(early, replace(short, gap=short.gap / 1e3)) == {"false certificate"}
    assert failures(early, replace(short, warned=False)) == {"unwarned miss"}
    moved = replace(answer, intercept=answer.intercept + 0.1)
    assert failures(problem, moved) == {"false certificate", "unwarned miss"}
    bad = replace(answer, coef=10 + answer.coef, gap=answer.gap + 1e6, warned=True)
    assert failures(problem, bad) == {"worse than null"}
    assert failures(problem, replace(answer, coef=np.nan * answer.coef)) == {"crash"}
    assert failures(problem, replace(answer, error="TypeError: no")) == {"crash"}
    assert failures(problem, replace(answer, error="ValueError: y holds text", refused=True)) == set()


@pytest.mark.parametrize("solver", ["joint", "multinomial"])
def test_planted_faults_of_coupled_columns_are_caught(solver):
    changes = {"solver": solver}
    if solver == "multinomial":
        y = np.digitize(a_problem().y, [-0.5, 0.5]).astype(float)
        changes |= {"loss": LossByHand("logistic"), "y": y}
    problem = a_problem(**changes)
    answer = solve_attack(problem)
    assert failures(problem, answer) == set()
    moved = replace(answer, coef=answer.coef + 0.01)
    assert failures(problem, moved) == {"false certificate", "unwarned miss"}
    bad = replace(
        answer, coef=answer.coef + 10 * np.arange(1, 1 + answer.coef.shape[1]), gap=answer.gap + 1e6, warned=True
    )
    assert failures(problem, bad) == {"worse than null"}


def test_only_errors_that_the_library_raises_are_refusals(monkeypatch):
    """A weight of 0 for all rows is refused; a ValueError of numpy's in the midst of a fit is a crash."""
    nothing = a_problem(weight=np.zeros(60))
    refused = solve_attack(nothing)
    assert refused.refused
    assert failures(nothing, refused) == set()

    monkeypatch.setattr("quernel.objective.blocks._predict", lambda *args: np.zeros((3, 2)))  # of 60 rows
    crashed = solve_attack(a_problem())
    assert "broadcast" in crashed.error
    assert failures(a_problem(), crashed) == {"crash"}


def test_a_number_is_always_the_same_problem():
    for number in range(20):
        one, other = draw_attack(3, number), draw_attack(3, number)
        np.testing.assert_array_equal(one.X, other.X)
        np.testing.assert_array_equal(one.y, other.y)
        assert (one.alpha, one.solver, one.levels) == (other.alpha, other.solver, other.levels)
    assert not np.array_equal(draw_attack(4, 0).y, draw_attack(3, 0).y)


def test_an_interrupted_run_continues(tmp_path, monkeypatch, capsys):
    """Some real problems of the same generator, interrupted twice: by Ctrl-C, and by a line that was cut."""
    out, done, run = tmp_path / "attack.jsonl", [], attack.run_attack

    def interrupted(seed, number):
        if number == 2 and done.count(2) == 0:
            done.append(2)
            raise KeyboardInterrupt
        done.append(number)
        return run(seed, number)

    monkeypatch.setattr(attack, "run_attack", interrupted)
    monkeypatch.setattr("sys.argv", ["attack", "--problems", "5", "--seed", "11", "--out", str(out)])
    attack.main()
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 problems")
    out.write_text(out.read_text()[:-20])
    attack.main()
    assert done == [0, 1, 2, 1, 2, 3, 4]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("5 problems")
    records = attack.read_records(out, 11)
    assert sorted(records) == [0, 1, 2, 3, 4]
    assert all(
        not verdict["open"] and not verdict["failures"] for record in records.values() for verdict in record["verdicts"]
    )
    assert json.dumps(records[4]) in out.read_text()

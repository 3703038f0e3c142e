"""Every adapter asks its system for our problem: what comes back is as good as our certified optimum, in our units."""

import json
import warnings
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from benchmarks import comparisons, page, residuals
from benchmarks.systems import quadratic
from benchmarks.systems.forecasters import LEVELS

from quernel.bench import Answer, Task, fit_and_score, load_system
from quernel.datasets import make_homoscedastic
from quernel.metrics import pinball_loss
from quernel.solvers import newton

ROOT = Path(__file__).parents[2]
QUERNEL = "quernel.bench:QUERNEL"
FEATURES = Task(n=300, level=0.3, alpha=1e-3, M=20, bandwidth=0.5, repeats=1)
KERNEL = Task(n=200, level=0.3, alpha=1e-3, fit_intercept=True, repeats=1)
# So few features that the unpenalised optimum is unique and of moderate size: this alpha is then as good as none.
LINEAR = Task(n=400, level=0.3, alpha=1e-9, M=8, bandwidth=0.5, repeats=1)

# What each is known to reach: their own tolerances differ.
CASES = [
    ("quernel.bench:HIGHS", LINEAR, 1e-6),
    ("quernel.bench:HIGHS_IPM", LINEAR, 1e-6),
    ("benchmarks.systems.statsmodels:QUANTREG", LINEAR, 1e-5),
    ("benchmarks.systems.pyfixest:FRISCH_NEWTON", LINEAR, 1e-6),
    ("benchmarks.systems.pyfixest:FRISCH_NEWTON", replace(LINEAR, fit_intercept=True), 1e-6),
    ("benchmarks.systems.statsmodels:QUANTREG", replace(LINEAR, fit_intercept=True), 1e-5),
    ("benchmarks.systems.r:FN", LINEAR, 1e-6),
    ("benchmarks.systems.r:FN", replace(LINEAR, fit_intercept=True), 1e-6),
    ("benchmarks.systems.r:PFN", LINEAR, 1e-6),
    ("benchmarks.systems.r:PFNB", LINEAR, 1e-6),
    ("benchmarks.systems.rehline:REHLINE", FEATURES, 1e-4),
    ("benchmarks.systems.clarabel:CLARABEL", FEATURES, 1e-6),
    ("benchmarks.systems.clarabel:CLARABEL", replace(FEATURES, fit_intercept=True), 1e-6),
    ("benchmarks.systems.clarabel:CLARABEL", KERNEL, 1e-6),
    ("benchmarks.systems.piqp:PIQP", FEATURES, 1e-6),
    ("benchmarks.systems.piqp:PIQP", replace(FEATURES, fit_intercept=True), 1e-6),
    ("benchmarks.systems.piqp:PIQP", KERNEL, 1e-6),
    ("benchmarks.systems.libsvm:SVR", replace(KERNEL, level=0.5), 1e-3),
    ("benchmarks.systems.libsvm:SVR", replace(KERNEL, level=0.5, bandwidth=0.5), 1e-3),
    ("benchmarks.systems.r:KQR", KERNEL, 1e-6),
    ("benchmarks.systems.r:KQR", replace(KERNEL, bandwidth=0.5), 1e-6),
    ("benchmarks.systems.torchkm:KQR", KERNEL, 1e-3),
    ("benchmarks.systems.torchkm:KQR", replace(KERNEL, bandwidth=0.5), 1e-3),
]


def result(system, task):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in the process of its own in which it usually runs
        found = fit_and_score(load_system(system), task)
    if found["status"] == "not installed":
        pytest.skip(f"{found['system']} is not installed")
    assert found["status"] == "done", found["status"]
    return found


@pytest.mark.parametrize(("system", "task", "tolerance"), CASES, ids=[f"{c[0].split('.')[-1]}-{c[1]}" for c in CASES])
def test_the_same_problem_is_solved(system, task, tolerance):
    bound = result(QUERNEL, task)["lower_bound"]
    excess = result(system, task)["objective"] / bound - 1
    assert -1e-9 < excess < tolerance


@pytest.mark.parametrize("task", [FEATURES, replace(KERNEL, fit_intercept=False)])
def test_a_wrong_scaling_would_be_seen(task):
    """The negative control: an optimum for twice the penalty, judged by ours, is worse than any tolerance above."""
    bound, twice = result(QUERNEL, task), result(QUERNEL, replace(task, alpha=2 * task.alpha))
    penalty = (twice["objective"] - twice["loss"]) / (2 * task.alpha)
    assert (twice["loss"] + task.alpha * penalty) / bound["lower_bound"] - 1 > 1e-3


def test_the_bound_is_below_our_objective_by_the_gap_only():
    found = result(QUERNEL, FEATURES)
    assert 0 <= found["objective"] - found["lower_bound"] <= 1e-6 * found["objective"]


def test_conquer_comes_near():
    """It smooths the loss, and always has an intercept."""
    task = replace(LINEAR, fit_intercept=True)
    bound = result(QUERNEL, task)["lower_bound"]
    assert -1e-9 < result("benchmarks.systems.r:CONQUER", task)["objective"] / bound - 1 < 0.01
    assert "intercept" in fit_and_score(load_system("benchmarks.systems.r:CONQUER"), LINEAR)["status"]


def test_ridge_has_times_but_no_objective():
    found = result("quernel.bench:RIDGE", FEATURES)
    assert found["seconds"] > 0
    assert "objective" not in found


@pytest.mark.parametrize("name", ["QUERNEL", "LIGHTGBM", "FOREST"])
def test_forecasters_predict_new_rows_well(name, monkeypatch):
    monkeypatch.setattr("benchmarks.systems.forecasters.NEW_ROWS", 2_000)
    found = result(f"benchmarks.systems.forecasters:{name}", Task(n=1_000, level=0.5, alpha=1e-4, repeats=1))
    loss, new = float(found["note"].split()[-1]), make_homoscedastic(2_000, random_state=1)
    least = np.mean(pinball_loss(new.y, new.quantile(new.X, LEVELS), LEVELS))
    assert 0.98 * least < loss < 1.15 * least
    assert np.mean(pinball_loss(new.y, np.zeros((2_000, 5)), LEVELS)) > 1.15 * least  # fits of nothing would be seen


def test_libsvm_declines_other_levels():
    found = fit_and_score(load_system("benchmarks.systems.libsvm:SVR"), KERNEL)
    assert found["status"] == "failed: SVR knows level 0.5 only"


def test_the_dual_program_is_the_dual():
    """At any feasible point it is below the optimum: minus its value over n bounds F from below."""
    rng, task = np.random.default_rng(0), replace(KERNEL, fit_intercept=False)
    program = quadratic.dual(task)
    optimum = result(QUERNEL, task)["objective"]
    for _ in range(5):
        theta = rng.uniform(program.low, program.high, task.n)
        assert -(theta @ program.P @ theta / 2 + program.c @ theta) / task.n <= optimum


def test_an_answer_needs_only_what_it_found():
    answer = FEATURES.make_answer(1.0, np.zeros(FEATURES.M))
    assert isinstance(answer, Answer)
    assert FEATURES.objective(answer.fitted, answer.penalty) == pytest.approx(FEATURES.null_objective(), rel=1e-12)


# --- the comparison and its page -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").rglob("[!_]*.py")), ids=lambda path: path.stem)
def test_every_benchmark_can_be_imported(path):
    import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def test_every_system_of_a_comparison_can_be_loaded():
    for comparison in comparisons.COMPARISONS.values():
        for system in comparison.systems:
            assert load_system(system).name


MACHINE = {"processor": "abacus, 2 cores", "memory": "1 GiB", "python": "3.11", "packages": "quernel 0"}


def test_the_page_says_what_did_not_work():
    row = {"system": "peer", "problem": "n=1", "version": "", "seconds": None, "excess": None, "note": ""}
    goal = {
        "what": "x",
        "ratio": None,
        "unit": "not installed",
        "goal": ">= 2",
        "met": None,
        "ours": 1.0,
        "baseline": None,
    }
    text = page.render_page(
        MACHINE, [goal], [row | {"status": "timed out after 60 s"}, row | {"status": "failed: too | large"}], []
    )
    assert "| x | not installed | >= 2 | not measured | 1 |  |" in text
    assert "| peer |  |  |  | timed out after 60 s |" in text
    assert "| peer |  |  |  | failed: too / large |" in text
    assert text.count("**n=1**") == 1


def test_the_committed_page_shows_the_committed_results():
    kept = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    shown = (ROOT / "docs" / "benchmarks.md").read_text()
    measured = json.loads(residuals.RESULTS.read_text())
    assert shown == page.render_page(kept["machine"], kept["results"], kept.get("systems", []), measured)


def test_residuals_vanish_at_the_solution_and_the_certificate_is_a_bound_elsewhere():
    rng = np.random.default_rng(0)
    Phi, alpha = rng.standard_normal((150, 5)), 1e-3
    y = Phi[:, 0] + rng.standard_normal(150)
    best, duals = residuals.fit_quernel(newton.solve, Phi, y, alpha, 1e-9)
    assert max(residuals.residuals_of(Phi, y, alpha, best, duals).values()) < 1e-12
    optimum = objective_at(Phi, y, alpha, best)
    for shift in (1e-3, 0.1):
        moved = np.r_[best[:5] + shift, best[5:6]]
        r = y - Phi @ moved[:5] - moved[5]
        x = np.r_[moved, np.maximum(r, 0), np.maximum(-r, 0)]
        found = residuals.residuals_of(Phi, y, alpha, x, duals)
        assert found["primal"] < 1e-12  # feasible, but no longer stationary
        assert found["dual"] == pytest.approx(2 * alpha * shift, rel=1e-6)
        here = objective_at(Phi, y, alpha, x)
        assert 0 < here - optimum <= residuals.certificate(Phi, y, alpha, x, duals) * here
        wrong = residuals.residuals_of(Phi, y + 0.5, alpha, x, duals)
        assert wrong["primal"] == pytest.approx(0.5)


def objective_at(Phi, y, alpha, x):
    """Mean pinball loss and ridge, from coefficients and intercept alone."""
    r = y - Phi @ x[: Phi.shape[1]] - x[Phi.shape[1]]
    level = residuals.LEVEL
    return np.mean(np.maximum(level * r, (level - 1) * r)) + alpha * np.sum(x[: Phi.shape[1]] ** 2)

"""The experiments' own formulas: the true risk, the printed tables, the literal variant, the choice by validation."""

import numpy as np
import pytest
from scipy import integrate, stats

from quernel.data import ArrayRows, InMemoryDesign
from quernel.losses import Pinball
from quernel.metrics import pinball_loss
from quernel.objective import Problem
from quernel.paper import EXPERIMENTS, Table, paper_numbers
from quernel.paper.holdout_fit import ALPHAS, LEVELS, fit_and_select
from quernel.paper.output import OutputFolder
from quernel.paper.sampling import literal_factor
from quernel.paper.simulated import SIMULATIONS, bayes_risk, make_trial, normal_excess_risk
from quernel.solvers import newton


def expected_loss(shift, level, scale):
    """E rho(scale (e - z) - shift), by quadrature on either side of the kink."""
    z = stats.norm.ppf(level)

    def inside(e):
        residual = scale * (e - z) - shift
        return (level - (residual < 0)) * residual * stats.norm.pdf(e)

    kink = z + shift / scale
    return sum(integrate.quad(inside, *ends, epsabs=1e-13)[0] for ends in ((-12, kink), (kink, 12)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("scale", [1.0, 1.7])
@pytest.mark.parametrize("shift", [-0.8, -0.01, 0.003, 0.4])
def test_excess_risk_is_the_integral_over_the_noise(level, scale, shift):
    exact = expected_loss(shift, level, scale) - expected_loss(0.0, level, scale)
    found = normal_excess_risk(np.array(shift), scale, level)
    assert found == pytest.approx(exact, abs=1e-11)
    assert found > 0
    assert abs(normal_excess_risk(np.array(shift), scale, level + 0.02) - exact) > 1e-9


@pytest.mark.parametrize("simulation", SIMULATIONS)
def test_the_bayes_risk_is_what_the_true_quantiles_lose(simulation):
    trial = make_trial(simulation, 40_000, np.random.default_rng(0))
    y = np.broadcast_to(trial.y if trial.y.ndim == 2 else trial.y[:, None], trial.truth.shape)
    for k, level in enumerate(LEVELS):
        residual = y[:, k] - trial.truth[:, k]
        losses = np.maximum(level * residual, (level - 1) * residual)
        error = losses.std() / np.sqrt(len(losses))
        assert abs(losses.mean() - bayes_risk(simulation, level)) < 4 * error
        assert abs(losses.mean() - 1.05 * bayes_risk(simulation, level)) > 4 * error
        assert np.mean(residual <= 0) == pytest.approx(level, abs=0.01)


def test_the_printed_tables_are_read_in_the_right_places():
    assert paper_numbers.sample_size_cells("homoscedastic")[paper_numbers.RF, 0.1, 500] == (0.193, 0.014)
    assert paper_numbers.sample_size_cells("homoscedastic")[paper_numbers.EXACT, 0.5, 10_000] == (0.386, 0.001)
    assert paper_numbers.sample_size_cells("heteroscedastic")[paper_numbers.RF, 0.75, 2000] == (0.482, 0.004)
    assert paper_numbers.sample_size_cells("heteroscedastic")[paper_numbers.EXACT, 0.9, 10_000] == (0.254, 0.001)
    exact = [
        paper_numbers.sample_size_cells(s)[paper_numbers.EXACT, level, 10_000][0]
        for s in SIMULATIONS
        for level in LEVELS
    ]
    bound = [bayes_risk(s, level) for s in SIMULATIONS for level in LEVELS]
    assert np.all(np.array(exact) < bound), "what the page says of them"


def test_the_literal_variant_is_the_printed_formula():
    rng = np.random.default_rng(0)
    Phi, alpha = rng.standard_normal((40, 6)) * np.arange(1, 7), 0.5
    score = np.diag(Phi.T @ Phi @ np.linalg.inv(Phi.T @ Phi + alpha * 40 * np.eye(6)))
    np.testing.assert_allclose(literal_factor(Phi, alpha), (score / score.sum()) ** -0.5, rtol=1e-10)
    assert np.all(np.diff(literal_factor(Phi, alpha)) < 0), "features of low leverage are amplified"


@pytest.mark.parametrize("own_targets", [False, True])
def test_validation_chooses_the_best_weight_of_the_grid(own_targets):
    rng = np.random.default_rng(3)
    Phi, new = rng.standard_normal((2, 150, 8))
    y, y_new = Phi[:, 0] + rng.standard_normal(150), new[:, 0] + rng.standard_normal(150)
    levels = (0.25, 0.5)
    if own_targets:
        y, y_new = np.column_stack([y, 2 * y]), np.column_stack([y_new, 2 * y_new])
    chosen = fit_and_select(Phi, y, new, y_new, levels)
    for k, level in enumerate(levels):
        target, held_out = (y[:, k], y_new[:, k]) if own_targets else (y, y_new)
        rows = InMemoryDesign(ArrayRows(Phi, target), features=Phi)
        fits = [newton.solve(Problem(rows, Pinball([level]), alpha, fit_intercept=False)).coef for alpha in ALPHAS]
        losses = np.array([pinball_loss(held_out, new @ coef, [level])[0] for coef in fits])
        mine = list(ALPHAS).index(chosen.alpha[k])
        assert losses[mine] <= losses.min() * 1.001
        np.testing.assert_allclose(new @ chosen.coef[:, k], new @ fits[mine][:, 0], atol=0.02)
        assert losses.max() > losses.min() * 1.01, "the choice matters"
    assert np.all(chosen.gap <= 1e-6)


def test_tables_summarise_by_hand():
    table = Table([{"a": 1, "x": 2.0}, {"a": 2, "x": 5.0}, {"a": 1, "x": 4.0}])
    assert table.select(a=1).summary("x") == (3.0, pytest.approx(2**0.5), pytest.approx(1.0), 2)
    assert [(key, len(cell)) for key, cell in table.groups("a")] == [((1,), 2), ((2,), 1)]
    assert np.isnan(table.select(a=2).summary("x").se)


def test_experiments_have_names_of_their_own_and_quick_tasks_that_are_fewer():
    assert len({one.name for one in EXPERIMENTS}) == len(EXPERIMENTS)
    for one in EXPERIMENTS:
        quick, full = one.tasks("quick"), one.tasks("full")
        assert sum(map(one.cost, quick)) <= sum(map(one.cost, full))
        assert len({str(sorted(task.items())) for task in full}) == len(full)
        assert {name for use in one.uses for name in [use]} <= {other.name for other in EXPERIMENTS}


def test_words_and_formulas_of_a_table_stand_left_and_may_wrap(tmp_path):
    item = OutputFolder(tmp_path).save_table({"c": "", "n": "d"}, [["(a+1)/(b<c)", 3], [None, 4]], "name", "Caption.")
    assert '<td class="words">(a+1)/<wbr>(b&lt;c)</td><td>3</td>' in item.html
    assert '<th class="words">c</th><th>n</th>' in item.html
    assert "wbr" not in (tmp_path / "tables" / "name.md").read_text()

"""The design matrix in memory: the same sums for stored and recomputed features, and for any number of blocks."""

from dataclasses import fields

import numpy as np
import pytest

from quernel.data import ArrayRows, InMemoryDesign, available_memory, blocks
from quernel.features import PivotedCholesky, RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.solvers import SOLVERS, newton

N, M, LEVELS = 1500, 12, np.array([0.1, 0.5, 0.8])
WIDTH = np.array([0.3, 0.2, 0.4])
SOURCES = ("one block", "many blocks", "recomputed", "recomputed in many blocks", "features given")


class Counting:
    """A feature map that counts the rows it transforms."""

    def __init__(self, feature_map):
        self.feature_map = feature_map
        self.n_components_ = feature_map.n_components_
        self.rows = 0

    def transform(self, X):
        self.rows += len(X)
        return self.feature_map.transform(X)


@pytest.fixture
def data():
    rng = np.random.default_rng(51)
    X = rng.uniform(size=(N, 3))
    y = np.exp(-X[:, 0] + X[:, 1]) + rng.standard_normal(N)
    return X, y, rng.uniform(0, 2, N) * (rng.uniform(size=N) > 0.1)


@pytest.fixture
def make(data, monkeypatch):
    def make(source, weighted=True):
        X, y, weight = data
        monkeypatch.setattr("quernel._machine.BLOCK_BYTES", 1 if "many" in source else 8 * 2**20)
        monkeypatch.setattr("quernel._machine.BLOCK_ROWS", 100)
        feature_map = RandomFeatures(Gaussian(0.5), M, random_state=0).fit(X)
        rows = ArrayRows(X, y, weight if weighted else None)
        if source == "features given":
            return InMemoryDesign(rows, features=feature_map.transform(X))
        return InMemoryDesign(rows, Counting(feature_map), max_memory=0 if "recomputed" in source else None)

    return make


def sums(rows):
    """Everything that a solver asks for, at one point and for one direction."""
    rng = np.random.default_rng(52)
    problem = Problem(rows, Pinball(LEVELS), 1e-3)
    state = rows.new_state(anchor=rng.uniform(LEVELS - 1, LEVELS, (N, 3)))
    problem.set_coefficients(state, rng.standard_normal((M, 3)), np.array([0.5, 1.0, 1.5]))
    found = {}
    for name, dual_sums in (
        ("pull", problem.smoothed_gradient(state, WIDTH)),
        ("anchored", problem.multiplier_gradient(state, (np.full(3, 0.5), np.full(3, 0.7)))),
    ):
        found |= {f"{name} {field.name}": getattr(dual_sums, field.name) for field in fields(dual_sums)}
    for few in (False, True):
        curvatures = problem.curvature(state, WIDTH, np.full(3, few), np.array([False, False, True]))
        for k, curvature in enumerate(curvatures):
            found[f"surplus {few} {k}"] = curvature.surplus
            found[f"curvature {few} {k}"] = curvature.rows if few else curvature.gram
            found[f"cross {few} {k}"] = curvature.h if few else curvature.cross
    problem.set_direction(state, rng.standard_normal((M, 3)), np.ones(3))
    found["slope"], found["bend"] = problem.eval_along_direction(state, WIDTH, np.full(3, 0.1))
    problem.step(state, np.full(3, 0.1))
    problem.update_multipliers(state, WIDTH, np.array([True, False, True]))
    found["residual"], found["settled"] = state.collect("residual"), state.collect("anchor")
    found["centre"] = problem.center_intercept(state, np.ones(3, dtype=bool))
    found["size"] = np.asarray(problem.rows.kernel_scale())
    return found


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("source", SOURCES[1:])
def test_sums_agree_wherever_the_rows_live(make, source, weighted):
    expected, found = sums(make(SOURCES[0], weighted)), sums(make(source, weighted))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        size = np.max(np.abs(value))
        assert size > 0 or name == "anchored active"
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-12 * size, err_msg=name)


def test_one_row_more_or_less_would_be_noticed(make, data):
    """Negative control: a sum that lost a single row is not within 1e-12."""
    expected = sums(make("one block"))
    _, y, weight = data
    y[np.argmax(weight)] += 1.0
    found = sums(make("many blocks"))
    size = np.max(np.abs(expected["pull loss"]))
    assert np.all(np.abs(found["pull loss"] - expected["pull loss"]) > 1e-6 * size)


def test_sums_by_hand(make, data):
    """value and gradient of the smoothed objective, from their definitions."""
    X, y, weight = data
    rng = np.random.default_rng(53)
    coef, constant, anchor = (
        rng.standard_normal((M, 3)),
        rng.standard_normal(3),
        rng.uniform(LEVELS - 1, LEVELS, (N, 3)),
    )
    rows = make("many blocks")
    problem, state = Problem(rows, Pinball(LEVELS), 1e-3), rows.new_state(anchor=anchor)
    problem.set_coefficients(state, coef, constant)
    dual_sums = problem.smoothed_gradient(state, WIDTH)
    Phi, share = RandomFeatures(Gaussian(0.5), M, random_state=0).fit(X).transform(X), weight / weight.sum()
    r = y[:, None] - Phi @ coef - constant
    v = np.minimum(np.maximum(anchor + r / WIDTH, LEVELS - 1), LEVELS)
    loss = np.where(r > 0, LEVELS, LEVELS - 1) * r
    for found, expected in (
        (dual_sums.phi_t_dual, Phi.T @ (share[:, None] * v)),
        (dual_sums.mean_dual, share @ v),
        (dual_sums.positive, share @ np.where(v > 0, v, 0)),
        (dual_sums.negative, share @ np.where(v < 0, -v, 0)),
        (dual_sums.loss, share @ loss),
        (dual_sums.fenchel_gap, share @ (loss - v * r)),
        (problem.objective(dual_sums, coef, constant), share @ loss + 1e-3 * np.sum(coef**2, axis=0)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("source", SOURCES[1:])
def test_a_solve_gives_the_same_answer_wherever_the_rows_live(make, source, intercept):
    expected, found = (
        newton.solve(Problem(make(where), Pinball(LEVELS), 1e-4, fit_intercept=intercept))
        for where in (SOURCES[0], source)
    )
    assert expected.converged
    assert found.converged
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-9)
    np.testing.assert_allclose(found.coef, expected.coef, atol=1e-5 * np.abs(expected.coef).max())
    assert found.dual.shape == (N, 3)


# When features are stored


def test_cached_says_whether_features_are_kept(make):
    assert {source: make(source).cached for source in SOURCES} == {
        "one block": True,
        "many blocks": True,
        "recomputed": False,
        "recomputed in many blocks": False,
        "features given": True,
    }


def test_the_limit_is_in_bytes(data):
    X, y, _ = data
    feature_map = RandomFeatures(Gaussian(0.5), M, random_state=0).fit(X)
    needed = 8 * N * M
    assert InMemoryDesign(ArrayRows(X, y), feature_map, max_memory=needed).cached
    assert not InMemoryDesign(ArrayRows(X, y), feature_map, max_memory=needed - 1).cached


@pytest.mark.parametrize("source", SOURCES[:4])
def test_the_work_done_is_what_cached_promises(make, source):
    """Stored features are computed once; others once per pass, and only for steps that need them."""
    rows = make(source)
    problem, state = Problem(rows, Pinball(LEVELS), 1e-3), rows.new_state()
    problem.set_coefficients(state, np.zeros((M, 3)), np.zeros(3))
    for _ in range(3):
        problem.smoothed_gradient(state, WIDTH)
    problem.update_multipliers(state, WIDTH, np.ones(3, dtype=bool))
    assert state.sweeps == 4
    assert rows.feature_map.rows == (N if rows.cached else 4 * N)


@pytest.mark.parametrize(("n", "features"), [(1, 1), (255, 10), (256, 10**9), (257, 10**9), (100_000, 300), (10, 0)])
def test_blocks_cover_every_row_once(n, features):
    spans = list(blocks(n, features))
    assert np.array_equal(np.concatenate([np.arange(n)[span] for span in spans]), np.arange(n))
    assert all(span.stop > span.start for span in spans)


def test_many_blocks_are_many(make):
    assert len(make("one block").spans) == 1
    assert len(make("many blocks").spans) > 3


def test_admm_refuses_rows_that_are_not_resident(make):
    problem = Problem(make("recomputed"), Pinball(LEVELS), 1e-3)
    with pytest.raises(ValueError, match=r"admm.*1,500 rows x 12 features.*newton.*max_memory"):
        SOLVERS["admm"](problem)
    assert SOLVERS["admm"](Problem(make("one block"), Pinball(LEVELS), 1e-3), tol=1e-3).converged  # the same, kept


def test_rows_need_features_from_somewhere(data):
    X, y, _ = data
    with pytest.raises(ValueError, match="feature_map or the features"):
        InMemoryDesign(ArrayRows(X, y))


def test_features_without_their_source_of_new_rows(data):
    """Features that the caller computed are used as they are."""
    X, y, weight = data
    G = PivotedCholesky(Gaussian(1.0), tol=1e-6).fit_transform(X, sample_weight=weight)
    rows = InMemoryDesign(ArrayRows(X, y, weight), features=G, max_memory=0)
    assert rows.cached
    assert rows.as_array("Anything") is G


def test_shares_add_up_to_one_and_follow_the_weights(data):
    X, y, weight = data
    assert ArrayRows(X, y).share().sum() == pytest.approx(1)
    assert np.ptp(ArrayRows(X, y).share()) == 0
    share = ArrayRows(X, y, weight).share()
    assert share.sum() == pytest.approx(1)
    np.testing.assert_allclose(share * weight.sum(), weight, rtol=1e-14)


def test_memory_lies_down_and_is_collected(make):
    rows = make("many blocks")
    array = np.arange(3 * N, dtype=float).reshape(N, 3)
    state = rows.new_state(anchor=array)
    np.testing.assert_array_equal(state.collect("anchor"), array)
    np.testing.assert_array_equal(state.take(np.array([2, 0])).collect("anchor"), array[:, [2, 0]])


def test_there_is_memory_to_plan_with():
    found = available_memory()
    assert isinstance(found, int)
    assert 0 < found < 2**50


@pytest.mark.parametrize(("n", "size"), [(1000, 1000), (1000, 999), (1000, 7), (12_345, 800)])
def test_samples_are_spread_over_the_rows(n, size):
    X = np.arange(n, dtype=float)[:, None]
    rows = InMemoryDesign(ArrayRows(X, X[:, 0]), features=X)
    drawn = [rows.sample(size, np.random.default_rng(seed)).target for seed in range(3)]
    for sample in drawn:
        assert len(np.unique(sample)) == size
        assert np.all(np.abs(sample - (np.arange(size) + 0.5) * n / size) <= n / size + 1)
    assert size > n / 2 or not np.array_equal(drawn[0], drawn[1])

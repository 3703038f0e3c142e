"""Conditional coverage by a kernel: cutoffs against independent optima, coverage by simulation, and failure paths."""

import copy
from dataclasses import replace

import clarabel
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.metrics.pairwise import rbf_kernel

import quernel
from quernel import ConformalQuantileRegressor, KernelQuantileRegressor
from quernel.conformal.active_set_path import CutoffFit, CutoffProblem
from quernel.data import ArrayRows, InMemoryDesign
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.solvers import newton


class KnownCentre(BaseEstimator):
    """A model of intervals of the same width everywhere, around the true median."""

    def fit(self, X, y):
        return self

    def predict(self, X):
        centre = np.sin(np.asarray(X)[:, 0])
        return np.column_stack([centre - 1, centre + 1])


def draw(rng, n):
    """Rows whose noise grows with |x|."""
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(X[:, 0]) + (0.2 + np.abs(X[:, 0])) * rng.standard_normal(n)


def factor(rng, n, m, width):
    """Features whose inner products are the exact kernel of n + m rows: (n, n), (m, n), and what the m have besides."""
    X = rng.uniform(-2, 2, (n + m, 2))
    kernel = rbf_kernel(X, gamma=1 / (2 * width**2)) + 1e-5 * np.eye(n + m)
    root = np.linalg.cholesky(kernel[:n, :n])
    new = np.linalg.solve(root, kernel[:n, n:]).T
    return X, root, new, np.diag(kernel)[n:] - np.sum(new**2, axis=1)


def start(features, columns, score, level, kappa):
    """The exact fit of the calibration scores, from a fit in which the columns have a small penalty."""
    both = np.column_stack([features, 1e3 * columns])
    rows = InMemoryDesign(ArrayRows(both, score), features=both)
    fit = newton.solve(Problem(rows, Pinball([level]), kappa / (2 * len(score)), fit_intercept=False), tol=1e-9)
    problem = CutoffProblem(features, columns, score, level, kappa, nugget=0.0)
    return CutoffFit.from_approximate(problem, fit.dual[:, 0], 1e3 * fit.coef[features.shape[1] :, 0])


def oracle(features, columns, score, level, kappa, new, threshold):
    """The prediction of a new row (features, columns, own) at c = threshold, by an interior-point solver."""
    phi, z, own = new
    n, (M, p) = len(score), (features.shape[1], columns.shape[1])
    tilt = threshold * np.concatenate([phi, [np.sqrt(own)], z])
    cost = np.concatenate([-tilt, np.full(n, level), np.full(n, 1 - level)])
    ridge = sparse.diags(np.concatenate([np.full(M + 1, kappa), np.zeros(p + 2 * n)]), format="csc")
    eye = sparse.eye(n)
    fitted = sparse.csc_matrix(np.column_stack([features, np.zeros(n), columns]))
    positive = sparse.hstack([sparse.csc_matrix((2 * n, M + 1 + p)), -sparse.eye(2 * n)])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    solution = clarabel.DefaultSolver(
        ridge, cost, sparse.vstack([sparse.hstack([fitted, eye, -eye]), positive], format="csc"),
        np.concatenate([score, np.zeros(2 * n)]), [clarabel.ZeroConeT(n), clarabel.NonnegativeConeT(2 * n)], settings,
    ).solve()  # fmt: skip
    return float(np.concatenate([phi, [np.sqrt(own)], z]) @ np.array(solution.x)[: M + 1 + p])


@pytest.mark.parametrize(
    ("n", "level", "kappa", "columns"),
    [
        (200, 0.9, 0.5, "constant"),
        (350, 0.5, 0.05, "constant"),
        (500, 0.95, 2.0, "groups"),
        (700, 0.8, 0.2, "covariates"),
        (1000, 0.9, 1.0, "constant"),
    ],
)
def test_cutoffs_are_those_of_an_interior_point_solver(n, level, kappa, columns):
    rng = np.random.default_rng(n)
    X, features, new, own = factor(rng, n, 4, width=0.7)
    columns = {
        "constant": np.ones((n + 4, 1)),
        "groups": np.column_stack([X[:, 0] > 0, X[:, 0] <= 0]).astype(float),
        "covariates": np.column_stack([np.ones(n + 4), X]),
    }[columns]
    score = np.abs(rng.standard_normal(n)) * (0.2 + np.abs(X[:n, 0]))
    threshold = np.array([level, level, level - 0.3, level - 0.9])
    cutoff, error = start(features, columns[:n], score, level, kappa).cutoffs(new, columns[n:], threshold, own)
    for j in range(4 if n < 500 else 2):
        wanted = oracle(features, columns[:n], score, level, kappa, (new[j], columns[n + j], own[j]), threshold[j])
        assert abs(cutoff[j] - wanted) < 1e-5
        assert abs(cutoff[j] - wanted) < error[j] + 1e-6
    assert error.max() < 1e-4


def test_without_a_kernel_cutoffs_are_those_of_split_conformal():
    """A huge penalty. Where (n + 1) level is a whole number two scores are quantiles: the smaller one is enough."""
    rng = np.random.default_rng(0)
    for n, level in ((99, 0.9), (98, 0.9), (79, 0.95), (199, 0.5)):
        _, features, new, own = factor(rng, n, 3, width=0.7)
        score, ones = np.abs(rng.standard_normal(n)), np.ones((n + 3, 1))
        fit = start(features, ones[:n], score, level, kappa=1e6)
        cutoff, error = fit.cutoffs(new, ones[n:], np.full(3, level), own)
        np.testing.assert_allclose(cutoff, np.sort(score)[round(level * (n + 1) + 0.499) - 1], atol=1e-4)
        assert error.max() < 1e-4


def test_randomised_thresholds_below_zero_need_no_second_fit(monkeypatch):
    rng = np.random.default_rng(1)
    X, features, new, own = factor(rng, 200, 20, width=0.7)
    score, ones = np.abs(rng.standard_normal(200)) * (0.2 + np.abs(X[:200, 0])), np.ones((220, 1))
    fit = start(features, ones[:200], score, 0.5, kappa=0.5)
    monkeypatch.setattr(CutoffFit, "_solve_anew", None)
    thresholds = (-0.4, 0.0, 0.4)
    cutoffs, errors = zip(*(fit.cutoffs(new, ones[200:], np.full(20, c), own) for c in thresholds), strict=True)
    assert np.max(errors) < 1e-4
    assert np.all(np.diff(cutoffs, axis=0) > 0), "monotone in the threshold"


def test_a_new_row_conforms_up_to_its_cutoff():
    """By definition: in the fit to all n + 1 rows, the new row's dual is below the level just below the cutoff only."""
    rng = np.random.default_rng(0)
    n, level, kappa = 300, 0.9, 0.5
    X, features, new, own = factor(rng, n, 3, width=0.7)
    score = np.abs(rng.standard_normal(n)) * (0.2 + np.abs(X[:n, 0]))
    ones = np.ones((n + 3, 1))
    cutoff, _ = start(features, ones[:n], score, level, kappa).cutoffs(new, ones[n:], np.full(3, level), own)
    for j in range(3):
        rows = np.vstack([np.column_stack([features, np.zeros(n)]), np.append(new[j], np.sqrt(own[j]))])
        for move in (-1e-4, 1e-4):
            source = ArrayRows(rows, np.append(score, cutoff[j] + move))
            problem = Problem(
                InMemoryDesign(source, features=rows), Pinball([level]), kappa / (2 * (n + 1)), fit_intercept=True
            )
            dual = newton.solve(problem, tol=1e-10).dual[-1, 0]
            assert (dual < level - 1e-9) == (move < 0)


@pytest.mark.filterwarnings("ignore")  # of theirs
def test_cutoffs_are_those_of_conditionalconformal():
    package = pytest.importorskip("conditionalconformal")
    rng = np.random.default_rng(3)
    n, level, penalty = 200, 0.9, 0.005
    X, features, new, own = factor(rng, n, 2, width=0.7)
    score = np.abs(rng.standard_normal(n)) * (0.2 + np.abs(X[:n, 0]))
    theirs = package.CondConf(
        lambda X, y: y,
        lambda X: np.ones((len(X), 1)),
        infinite_params={"kernel": "rbf", "gamma": 1 / 0.98, "lambda": penalty},
    )
    theirs.setup_problem(X[:n], score)
    ones = np.ones((n + 2, 1))
    fit = start(features, ones[:n], score, level, penalty * (n + 1))
    cutoff, _ = fit.cutoffs(new, ones[n:], np.full(2, level), own)
    found = [theirs.predict(level, X[[n + j]], lambda s, x: s, S_min=0.0, S_max=20.0, exact=False) for j in range(2)]
    np.testing.assert_allclose(cutoff, np.ravel(found), atol=2e-3)  # the length at which its bisection stops


def test_coverage_holds_everywhere_where_split_conformal_fails():
    """On average over new rows exactly (randomised), and near the middle and the ends as well."""
    found = {kind: [] for kind in ("split", "exact", "randomised")}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        (X, y), (X_new, y_new) = draw(rng, 1000), draw(rng, 400)
        split = ConformalQuantileRegressor(KnownCentre(), 0.9, method="prefit").fit(X, y)
        exact = clone(split).set_params(conditional="kernel", random_state=seed).fit(X, y)
        randomised = copy.copy(exact)
        randomised._conditional = replace(exact._conditional, randomize=True)
        for kind, model in zip(found, (split, exact, randomised), strict=True):
            low, high = model.predict_interval(X_new).T
            found[kind].append(np.column_stack([(low <= y_new) & (y_new <= high), np.abs(X_new[:, 0])]))
    hit, x = ({kind: np.concatenate(parts)[:, k] for kind, parts in found.items()} for k in (0, 1))
    assert abs(hit["randomised"].mean() - 0.9) < 0.025
    assert 0.9 - 0.025 < hit["exact"].mean() < 0.95
    ends, middle = ({kind: hit[kind][where(x[kind])].mean() for kind in hit} for where in (ends_of, middle_of))
    assert ends["split"] < 0.8  # the negative control
    assert middle["split"] > 0.98
    assert abs(ends["randomised"] - 0.9) < 0.06
    assert middle["randomised"] - ends["randomised"] < 0.5 * (middle["split"] - ends["split"])


def ends_of(x):
    return x > 1.5


def middle_of(x):
    return x < 0.5


@pytest.fixture(scope="module")
def rows():
    return draw(np.random.default_rng(5), 400)


def conditional(**parameters):
    return ConformalQuantileRegressor(
        KnownCentre(), 0.8, method="prefit", conditional="kernel", random_state=0, **parameters
    )


def test_rows_alone_or_together_the_same(rows):
    X, y = rows
    model = conditional(randomize=True).fit(X, y)
    together, error = model.predict_cutoff(X[:20])
    alone = [model.predict_cutoff(X[[j]])[0][0] for j in range(20)]
    np.testing.assert_allclose(alone, together, atol=2 * error.max() + 1e-12)


def test_several_coverages_are_nested_and_each_side_has_its_own_cutoff(rows):
    X, y = rows
    intervals = conditional(symmetric=False).fit(X, y).predict_interval(X[:50], coverage=[0.5, 0.8])
    assert np.all(intervals[:, 0, 1] <= intervals[:, 0, 0])
    assert np.all(intervals[:, 1, 0] <= intervals[:, 1, 1])


def test_each_group_is_covered_with_random_thresholds():
    """Exactly, whatever the penalty; without its column, the smaller group is not covered (the negative control)."""
    level, n, m, covered = 0.8, 150, 60, {True: [], False: []}
    for seed in range(50):
        rng = np.random.default_rng(seed)
        (X, y), (X_new, y_new) = draw(rng, n), draw(rng, m)
        (label, y), (new, y_new) = in_groups(X, y), in_groups(X_new, y_new)
        score, score_new = np.abs(y - np.sin(X[:, 0])), np.abs(y_new - np.sin(X_new[:, 0]))
        features = RandomFeatures(Gaussian(1.0), 40, random_state=seed).fit(X)
        threshold = rng.uniform(level - 1, level, m)
        for with_groups, hits in covered.items():
            columns, columns_new = (
                np.column_stack([one == "a", one == "b"]).astype(float) if with_groups else np.ones((len(one), 1))
                for one in (label, new)
            )
            fit = start(features.transform(X), columns, score, level, kappa=1000.0)
            cutoff, _ = fit.cutoffs(features.transform(X_new), columns_new, threshold, np.zeros(m))
            hits.append([np.mean(score_new <= cutoff, where=new == one) for one in ("a", "b")])
    assert np.abs(np.mean(covered[True], axis=0) - level).max() < 0.035
    assert np.mean(covered[False], axis=0)[1] < 0.5


def test_groups_are_those_of_the_fit(rows):
    X, y = rows
    label, y = in_groups(X, y)
    model = conditional().fit(X, y, groups=label, covariates=lambda X: X[:, :1])
    low, high = model.predict_interval(X[:40], groups=label[:40]).T
    assert np.median((high - low)[label[:40] == "b"]) > 2 * np.median((high - low)[label[:40] == "a"])
    with pytest.raises(ValueError, match="Group 'c' was not calibrated"):
        model.predict_interval(X[:1], groups=["c"])
    assert model.set_params(coverage=0.5).predict_interval(X[:2], groups=label[:2]).shape == (2, 2)


def in_groups(X, y):
    """Two groups, of which the smaller one has far wider noise."""
    label = np.where(X[:, 1] > 1.0, "b", "a")
    return label, y + np.where(label == "b", 3 * np.sign(y - np.sin(X[:, 0])), 0)


def test_a_group_with_too_few_rows_is_refused(rows):
    X, y = rows
    label = np.where(np.arange(len(y)) < 3, "rare", "common")
    with pytest.raises(ValueError, match="rare"):
        conditional().fit(X, y, groups=label)


def test_around_a_fitted_model_of_frames_saved_and_loaded(rows, tmp_path):
    X, y = rows
    frame = pd.DataFrame({"a": X[:, 0], "side": np.where(X[:, 1] > 0, "up", "down")})
    inner = KernelQuantileRegressor(bandwidth="auto", n_components=50, recalibrate=False, random_state=0)
    model = ConformalQuantileRegressor(inner, 0.8, conditional="kernel", calibration_size=0.5, random_state=0)
    model.fit(frame, y)
    quernel.save(model, tmp_path / "model.quernel")
    again = quernel.load(tmp_path / "model.quernel")
    np.testing.assert_array_equal(again.predict_interval(frame[:30]), model.predict_interval(frame[:30]))
    with pytest.raises(ValueError, match="conditional"):
        quernel.to_onnx(model, tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("parameters", "arguments", "message"),
    [
        ({"conditional": "forest"}, {}, "Unknown conditional 'forest'"),
        ({"conditional": "kernel", "method": "cv+"}, {}, "method='split' or 'prefit'"),
        ({"conditional": "kernel"}, {"density_ratio": np.ones(400)}, "no density_ratio"),
        ({}, {"covariates": np.ones(400)}, "covariates was given, which is for conditional='kernel'"),
        ({"conditional": "kernel"}, {"covariates": np.ones(3)}, "one row for each of 400 rows"),
        ({"conditional": "kernel", "calibration_size": 60}, {}, "needs at least 100 calibration rows; there are 60"),
        ({"conditional": "kernel", "randomize": 1}, {}, "randomize must be True or False"),
    ],
)
def test_bad_input(rows, parameters, arguments, message):
    X, y = rows
    inner = KernelQuantileRegressor(bandwidth=1.0, alpha=1e-3, n_components=20, recalibrate=False)
    with pytest.raises(ValueError, match=message):
        ConformalQuantileRegressor(inner, 0.8, random_state=0, **parameters).fit(X, y, **arguments)


def test_a_cutoff_for_all_rows_is_no_function_of_them(rows):
    X, y = rows
    model = ConformalQuantileRegressor(KnownCentre(), 0.8, method="prefit").fit(X, y)
    with pytest.raises(ValueError, match="the same for all rows"):
        model.predict_cutoff(X)

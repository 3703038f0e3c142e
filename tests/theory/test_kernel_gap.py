"""The kernel gap: the optimum of the exact kernel, found by another solver, lies inside the bracket."""

import tracemalloc

import clarabel
import numpy as np
import pytest
from scipy import sparse

from quernel import theory
from quernel.data import ArrayRows
from quernel.features import Nystroem, RandomFeatures
from quernel.kernels import Gaussian, Laplacian, Matern, PeriodicSpline
from quernel.theory.kernel_gap import KernelGapOptions
from support.models import plain_regressor

KERNELS = (Gaussian, Laplacian, Matern)


def exact_optimum(K, y, level, alpha, share, *, fit_intercept):
    """Bounds on the minimum of exact kernel quantile regression by Clarabel, from its dual, a quadratic program:

    max s'y - s'K s / (4 alpha)  over  share (level - 1) <= s <= share level, and sum s = 0 with an intercept.
    """
    n = len(y)
    scale = share.max()  # variables of size one
    P = sparse.triu(sparse.csc_matrix(K * scale**2 / (2 * alpha)), format="csc")
    A = sparse.vstack([sparse.identity(n), -sparse.identity(n)], format="csc")
    b = np.concatenate([share * level, share * (1 - level)]) / scale
    cones = [clarabel.NonnegativeConeT(2 * n)]
    if fit_intercept:
        A, b = sparse.vstack([sparse.csc_matrix(np.ones((1, n))), A], format="csc"), np.concatenate([[0.0], b])
        cones = [clarabel.ZeroConeT(1), *cones]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    found = clarabel.DefaultSolver(P, -y * scale, A, b, cones, settings).solve()
    assert "Solved" in str(found.status)
    return sorted((-found.obj_val, -found.obj_val_dual))


def problem(seed, n):
    """Rows, targets and settings of all kinds."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 6))
    X = rng.random((n, d))
    y = np.sin(6 * X[:, 0]) + X.sum(axis=1) + rng.choice([0.05, 0.5, 1.0]) * rng.standard_t(3, n)
    return X, y, {
        "quantiles": [float(rng.choice([0.05, 0.1, 0.5, 0.9]))],
        "kernel": KERNELS[seed % 3](float(rng.uniform(0.2, 1.5))),
        "n_components": int(rng.choice([10, 30, 100, 300])),
        "sampling": str(rng.choice(["uniform", "leverage", "landmarks"])),
        "alpha": float(10 ** rng.uniform(-6, -2)),
        "fit_intercept": bool(rng.integers(2)),
        "random_state": seed,
    }  # fmt: skip


@pytest.mark.slow
def test_the_optimum_of_the_exact_kernel_is_always_inside_and_the_upper_end_is_near():
    """30 problems of up to 500 rows. Two solvers agree to 1e-7 of the objective, no more."""
    ratios, outside_alone = [], 0
    for seed, n in enumerate([150, 250, 400, 200, 300] * 5 + [500, 200, 300, 250, 400]):
        X, y, settings = problem(seed, n)
        model = plain_regressor(**settings).fit(X, y)
        F, share = model.objective_[0], np.full(n, 1 / n)
        K, (level,) = settings["kernel"].gram(X, X), settings["quantiles"]
        least, most = exact_optimum(K, y, level, model.alpha_, share, fit_intercept=model.fit_intercept)
        gap = model.kernel_gap(X, y)
        assert gap.lower[0] <= (F - least) / F + 1e-7, (seed, settings)
        assert gap.upper[0] >= (F - most) / F - 1e-7, (seed, settings)
        truth = (F - (least + most) / 2) / F
        outside_alone += not gap.lower[0] - 1e-7 <= 0 <= gap.upper[0] + 1e-7
        if truth > 0.01:
            ratios.append(gap.upper[0] / truth)
    assert len(ratios) >= 10
    assert np.median(ratios) <= 1.1, "the aim is 3"
    assert outside_alone >= 15, "a bracket around 0 would have been wrong: it can fail"


def weighted_problem():
    X, y, settings = problem(3, 200)
    weight = np.random.default_rng(0).integers(1, 4, 200)
    return X, y, weight, settings | {"n_components": 20, "sampling": "uniform", "fit_intercept": True}


def test_weights_count_like_repeated_rows_and_the_optimum_is_inside():
    X, y, weight, settings = weighted_problem()
    model = plain_regressor(**settings).fit(X, y, weight)
    gap = model.kernel_gap(X, y, weight)
    F, share = model.objective_[0], weight / weight.sum()
    K, (level,) = settings["kernel"].gram(X, X), settings["quantiles"]
    least, most = exact_optimum(K, y, level, model.alpha_, share, fit_intercept=True)
    assert gap.lower[0] - 1e-7 <= (F - least) / F
    assert (F - most) / F <= gap.upper[0] + 1e-7
    many = np.repeat(np.arange(200), weight)
    repeated = theory.kernel_gap(
        ArrayRows(X[many], y[many]), model.kernel_, model.feature_map_, model.quantiles_, model.alpha_, model.objective_
    )
    assert repeated.upper == pytest.approx(gap.upper, rel=1e-5)
    assert repeated.lower == pytest.approx(gap.lower, rel=1e-5)
    padded = model.kernel_gap(np.vstack([X, X[:5]]), np.append(y, y[:5] + 9), np.append(weight, np.zeros(5)))
    assert padded.upper == pytest.approx(gap.upper, rel=1e-5), "rows of weight 0 do not count"


def test_the_unit_of_y_does_not_matter_and_levels_are_the_same_alone_or_together():
    X, y, settings = problem(0, 200)
    settings |= {"quantiles": [0.1, 0.5, 0.9], "n_components": 30, "sampling": "uniform"}
    together = plain_regressor(**settings).fit(X, y).kernel_gap(X, y)
    scaled = plain_regressor(**settings | {"alpha": settings["alpha"] / 7}).fit(X, 7 * y).kernel_gap(X, 7 * y)
    assert scaled.upper == pytest.approx(together.upper, rel=1e-4)
    assert together.n_components == 30
    for k, level in enumerate(settings["quantiles"]):
        alone = plain_regressor(**settings | {"quantiles": level}).fit(X, y).kernel_gap(X, y)
        assert alone.upper[0] == pytest.approx(together.upper[k], rel=1e-4)


def test_the_exact_kernel_costs_nothing_and_few_features_do():
    X, y, settings = problem(1, 300)
    exact = plain_regressor(**settings | {"n_components": "exact"}).fit(X, y).kernel_gap(X, y)
    assert np.all(exact.upper >= -1e-9)
    assert np.all(exact.upper <= 1e-5)
    few = settings | {"n_components": 5, "sampling": "uniform", "alpha": 1e-4}
    assert np.all(plain_regressor(**few).fit(X, y).kernel_gap(X, y).lower > 0.01)


def test_joint_levels_a_model_file_and_landmarks_are_bracketed(tmp_path):
    import quernel

    X, y, settings = problem(2, 200)
    settings |= {"quantiles": [0.1, 0.5, 0.9], "n_components": 40, "fit_intercept": True, "sampling": "landmarks"}
    model = plain_regressor(**settings).fit(X, y)
    gap = model.kernel_gap(X, y)
    assert np.all(gap.lower >= -1e-7), "landmarks are in the kernel's space"
    quernel.save(model, tmp_path / "m.quernel")
    assert quernel.load(tmp_path / "m.quernel").kernel_gap(X, y).upper == pytest.approx(gap.upper, rel=1e-5)
    joint = plain_regressor(**settings | {"noncrossing": "joint", "sampling": "uniform"}).fit(X, y)
    assert np.all(joint.kernel_gap(X, y).lower <= joint.kernel_gap(X, y).upper)


def test_the_similarity_bound_holds_and_is_the_looser_one():
    X, y, settings = problem(3, 200)
    model = plain_regressor(**settings | {"n_components": 100, "sampling": "uniform", "alpha": 1e-3}).fit(X, y)
    gap = model.kernel_gap(X, y)
    assert gap.similarity_rows == 200
    assert gap.lower[0] <= gap.upper[0] <= gap.similarity_bound[0] < 1, "1 is what no features at all would give"
    alone = model.kernel_gap(X, y, similarity_only=True)
    assert alone.upper == pytest.approx(gap.similarity_bound, rel=1e-9)
    assert np.all(np.isneginf(alone.lower))
    assert "unknown to" in str(alone)
    more = plain_regressor(**settings | {"n_components": 20_000, "sampling": "uniform", "alpha": 1e-3})
    assert more.fit(X, y).kernel_gap(X, y).similarity_bound[0] < 0.5 * gap.similarity_bound[0]


@pytest.mark.parametrize("alpha", [1e-6, 1e-12])
def test_the_bracket_allows_for_the_rounding_of_the_kernel_which_tiny_weights_magnify(alpha):
    """The same rows in another order have the same optimum: brackets that rounding moved apart would be no proof."""
    X, y, settings = problem(0, 150)
    features = RandomFeatures(settings["kernel"], 150, random_state=0).fit(X)
    given = settings["kernel"], features, np.array([0.5]), alpha, np.array([0.1])
    one, other = (
        theory.kernel_gap(ArrayRows(X[way], y[way]), *given, tol=1e-9) for way in (slice(None), slice(None, None, -1))
    )
    lost = np.finfo(float).eps / (4 * alpha * 0.1)
    for gap, again in ((one, other), (other, one)):
        assert gap.upper[0] >= again.lower[0]
        assert gap.upper[0] - gap.lower[0] >= 2 * lost


@pytest.mark.parametrize("block_shape", [(1, 1), (7, 3), (50, 200), (256, 1024)])
def test_blocks_of_any_shape_give_the_same_bracket(block_shape):
    X, y, settings = problem(4, 120)
    features = RandomFeatures(settings["kernel"], 20, random_state=0).fit(X)
    given = (ArrayRows(X, y), settings["kernel"], features, np.array([0.3]), 1e-3, np.array([1.0]))
    usual, other = (theory.kernel_gap(*given, options=KernelGapOptions(block_shape=s)) for s in ((99, 5), block_shape))
    assert other.upper == pytest.approx(usual.upper, abs=1e-12)
    assert other.lower == pytest.approx(usual.lower, abs=1e-12)


def test_the_kernel_is_never_stored():
    rng = np.random.default_rng(0)
    X, n = rng.random((4000, 3)), 4000
    y = X[:, 0] + rng.standard_normal(n)
    model = plain_regressor(0.5, n_components=20, random_state=0).fit(X, y)
    model.kernel_gap(X, y)  # what is compiled or imported on the way does not count
    tracemalloc.start()
    try:
        model.kernel_gap(X, y)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < n * n * 8 / 3


def test_what_cannot_be_compared_is_refused_with_the_remedy():
    X, y, settings = problem(5, 150)
    model = plain_regressor(**settings).fit(X, y)
    for wrong in ((X[:-1], y[:-1]), (X, -y), (X, y, np.arange(1, 151))):
        with pytest.raises(ValueError, match="rows, targets and weights that the model was fitted to"):
            model.kernel_gap(*wrong)
    with pytest.raises(ValueError, match=r"inconsistent|150"):
        model.kernel_gap(X, y[:-1])
    with pytest.raises(ValueError, match="linear kernel has its own features"):
        plain_regressor(kernel="linear").fit(X, y).kernel_gap(X, y)
    unbounded = plain_regressor(kernel=PeriodicSpline(1.0), n_components=20, alpha=1e-2, random_state=0)
    with pytest.raises(ValueError, match=r"K\(x, x\)|diagonal|infinite"):
        unbounded.fit(X[:, :1], y).kernel_gap(X[:, :1], y)
    with pytest.raises(Exception, match="not fitted"):
        plain_regressor().kernel_gap(X, y)


def test_a_person_reads_the_worst_level_first_rounded_outwards(capsys):
    gap = theory.KernelGap(
        quantiles=np.array([0.1, 0.9]),
        lower=np.array([-0.0012345, 0.001]),
        upper=np.array([0.0, 0.0033331]),
        similarity_bound=np.array([0.5, 0.5]),
        objective=np.array([1.0, 1.0]),
        n_components=300,
        similarity_rows=500,
    )
    first, low, high = str(gap).splitlines()
    assert first == "M = 300 features cost at most 0.334 % of the objective, compared with the exact kernel:"
    assert low == "  level 0.1: -0.124 % to 0.000 %"
    assert high.startswith("  level 0.9: 0.1")
    X, y, settings = problem(6, 150)
    plain_regressor(**settings, verbose=1).fit(X, y).kernel_gap(X, y)
    assert "pass 1 over the rows is done" in capsys.readouterr().out


def test_nothing_is_lost_where_landmarks_are_all_rows():
    """Then the fit on landmarks is the exact one, and the bracket closes."""
    X, y, settings = problem(7, 120)
    model = plain_regressor(**settings | {"n_components": 15, "sampling": "uniform"}).fit(X, y)
    gap = model.kernel_gap(X, y)
    assert Nystroem(settings["kernel"], 300, landmarks="distinct").fit(X).n_components_ == 120
    assert gap.upper[0] - gap.lower[0] <= 1e-5

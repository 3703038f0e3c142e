"""Lines of the speed table: quernel beside itself, ridge regression and scikit-learn."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.goals import LEVELS, REPEATS, Row, at_most, times_faster
from quernel import KernelQuantileRegressor, KernelQuantileRegressorCV, estimate_cost, paths
from quernel.bench import time_best
from quernel.data import ArrayRows, InMemoryDesign
from quernel.datasets import make_heteroscedastic, make_homoscedastic
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Pinball
from quernel.metrics import pinball_loss
from quernel.objective import Problem


def lifted(n: int, M: int, bandwidth: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    X, y, _ = make_homoscedastic(n, random_state=0)
    return RandomFeatures(Gaussian(bandwidth), M, random_state=0).fit(X).transform(X), y


def ridge(Phi: np.ndarray, y: np.ndarray, alpha: float = 1e-4) -> np.ndarray:
    gram = Phi.T @ Phi / len(y)
    gram.flat[:: len(gram) + 1] += alpha
    return np.linalg.solve(gram, Phi.T @ y / len(y))


def on_ready_features(Phi: np.ndarray, y: np.ndarray, levels: object, alpha: float) -> KernelQuantileRegressor:
    model = KernelQuantileRegressor(levels, kernel="linear", alpha=alpha, fit_intercept=False, recalibrate=False).fit(
        Phi, y
    )
    assert np.all(model.duality_gap_ <= 1e-6)
    return model


def fits_beside_ridge() -> Iterator[Row]:
    for n, M, goal in ((200_000, 300, 0.7), (200_000, 1000, 0.5), (2_000_000, 100, 0.6)):
        Phi, y = lifted(n, M)
        baseline, _ = time_best(lambda Phi=Phi, y=y: ridge(Phi, y))
        for level in (0.1, 0.5):
            for alpha in (1e-2, 1e-4, 1e-6):
                ours, _ = time_best(lambda Phi=Phi, y=y, a=alpha, t=level: on_ready_features(Phi, y, t, a))
                yield at_most(f"fit / ridge, n={n:,}, M={M}, level {level}, alpha {alpha:g}", ours, baseline, goal)
        del Phi


def hard_fits_beside_ridge() -> Iterator[Row]:
    for bandwidth, alphas, goal in ((1.0, (1e-8, 1e-10), 1.5), (0.2, (1e-6, 1e-8), 3.0)):
        Phi, y = lifted(200_000, 300, bandwidth)
        baseline, _ = time_best(lambda Phi=Phi, y=y: ridge(Phi, y))
        for alpha in alphas:
            ours, _ = time_best(lambda Phi=Phi, y=y, a=alpha: on_ready_features(Phi, y, 0.5, a))
            what = f"fit / ridge, n=200,000, M=300, level 0.5, bandwidth {bandwidth:g}, alpha {alpha:g}"
            yield at_most(what, ours, baseline, goal)


def levels_together() -> Iterator[Row]:
    Phi, y = lifted(200_000, 300)
    one, _ = time_best(lambda: on_ready_features(Phi, y, 0.5, 1e-4))
    five, _ = time_best(lambda: on_ready_features(Phi, y, LEVELS, 1e-4))
    yield at_most("five levels together / one, n=200,000, M=300, alpha 1e-4", five, one, 2.5)


def grid_beside_one_cell() -> Iterator[Row]:
    Phi, y = lifted(10_000, 100)
    alphas, levels = 10.0 ** (np.arange(-20, 3) / 2), [0.1, 0.25, 0.5, 0.75, 0.9]
    cells = [time_best(lambda a=a, t=t: on_ready_features(Phi, y, t, a))[0] for a in alphas[::2] for t in levels]
    rows = InMemoryDesign(ArrayRows(Phi, y), features=Phi)
    problem = Problem(rows, Pinball(levels), 1.0, fit_intercept=False)
    ours, answer = time_best(lambda: paths.solve(problem, alphas))
    assert np.all(answer.relative_gap <= 1e-6)
    what = "23 alphas x 5 levels by paths.solve / median cold fit of one cell, n=10,000, M=100"
    yield at_most(what, ours, float(np.median(cells)), 25)


def search_beside_grid_search() -> Iterator[Row]:
    from sklearn.model_selection import GridSearchCV, KFold

    for n, M in ((500, 200), (5_000, 200)):
        X, y, _ = make_heteroscedastic(n, random_state=0)
        alphas, widths, common = 10.0 ** np.arange(-8, 0), [0.5, 1.0, 2.0], {"n_components": M, "random_state": 0}
        cv = list(KFold(5, shuffle=True, random_state=0).split(X))
        search = KernelQuantileRegressorCV(LEVELS, alphas=alphas, bandwidths=widths, cv=cv, **common)
        peer = GridSearchCV(
            KernelQuantileRegressor(LEVELS, **common), {"alpha": alphas, "bandwidth": widths}, cv=cv, scoring=_mean_loss
        )
        ours, _ = time_best(lambda search=search, X=X, y=y: search.fit(X, y))
        baseline, _ = time_best(lambda peer=peer, X=X, y=y: peer.fit(X, y), repeats=1)
        chosen = {"alpha": search.alpha_, "bandwidth": search.bandwidth_}
        same = "the same choice" if chosen == peer.best_params_ else f"chose {chosen}, not {peer.best_params_}"
        what = f"KernelQuantileRegressorCV, against GridSearchCV over the same 8 x 3 grid, n={n:,}, M={M} ({same})"
        yield times_faster(what, ours, baseline, 4)


def _mean_loss(model: KernelQuantileRegressor, X: np.ndarray, y: np.ndarray) -> float:
    return -float(np.mean(pinball_loss(y, model.predict(X), LEVELS)))


def whole_fit_beside_scikit_learn() -> Iterator[Row]:
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    X, y, _ = make_homoscedastic(2_000_000, random_state=0)
    peer = make_pipeline(RBFSampler(gamma=0.5, n_components=100, random_state=0), Ridge(1e-4, solver="cholesky"))
    baseline, _ = time_best(lambda: peer.fit(X, y))
    model = KernelQuantileRegressor(
        0.5, bandwidth=1.0, n_components=100, alpha=1e-4, fit_intercept=False, random_state=0
    )
    ours, _ = time_best(lambda: model.fit(X, y))
    assert np.all(model.duality_gap_ <= 1e-6)
    yield at_most("whole fit(X, y) / RBFSampler + Ridge(cholesky), n=2,000,000, M=100", ours, baseline, 0.2)


def growth() -> Iterator[Row]:
    seconds = {}
    for n in (200_000, 2_000_000):
        Phi, y = lifted(n, 100)
        seconds[n], _ = time_best(lambda Phi=Phi, y=y: on_ready_features(Phi, y, 0.5, 1e-4))
    yield at_most("growth: time at n=2,000,000 / at n=200,000, M=100", seconds[2_000_000], seconds[200_000], 9)


def features_beside_scikit_learn() -> Iterator[Row]:
    from sklearn.kernel_approximation import RBFSampler

    X, _, _ = make_homoscedastic(200_000, random_state=0)
    peer = RBFSampler(gamma=0.5, n_components=300, random_state=0).fit(X)
    ours = RandomFeatures(Gaussian(1.0), 300, random_state=0).fit(X)
    yield times_faster(
        "RandomFeatures.transform, against RBFSampler.transform, n=200,000, M=300",
        time_best(lambda: ours.transform(X))[0],
        time_best(lambda: peer.transform(X))[0],
        8,
    )


def exact_beside_libsvm() -> Iterator[Row]:
    from sklearn.svm import SVR

    for n, goal in ((2_000, 3), (20_000, 30)):
        X, y, _ = make_homoscedastic(n, random_state=0)
        # At level 1/2 the check loss is half the absolute one: C = 1 / (4 n alpha).
        peer = SVR(epsilon=0, gamma=0.5, C=1 / (4 * n * 1e-4), cache_size=2000)
        baseline, _ = time_best(lambda peer=peer, X=X, y=y: peer.fit(X, y), 1 if n > 5000 else REPEATS)
        model = KernelQuantileRegressor(0.5, bandwidth=1.0, n_components="exact", alpha=1e-4, recalibrate=False)
        ours, _ = time_best(lambda model=model, X=X, y=y: model.fit(X, y))
        yield times_faster(f"exact, against libsvm's SVR(epsilon=0), n={n:,}, alpha 1e-4", ours, baseline, goal)


def estimates_beside_the_truth() -> Iterator[Row]:
    """`estimate_cost` promises the order of magnitude."""
    for n, M, levels in ((2_000, 500, 0.5), (20_000, 500, LEVELS), (500_000, 100, 0.5)):
        X, y, _ = make_homoscedastic(n, random_state=0)
        model = KernelQuantileRegressor(levels, bandwidth="auto", n_components=M, random_state=0)
        measured, _ = time_best(lambda model=model, X=X, y=y: model.fit(X, y))
        predicted = estimate_cost(n, 3, M, np.size(levels)).seconds
        ratio = predicted / measured
        yield {
            "what": f"estimate_cost, predicted / measured, n={n:,}, M={M}, levels: {np.size(levels)}", "ratio": ratio,
            "unit": "x the time", "goal": "0.1 to 10", "met": 0.1 <= ratio <= 10, "ours": measured,
            "baseline": predicted,
        }  # fmt: skip


def many_features_few_rows() -> Iterator[Row]:
    Phi, y = lifted(800, 2000)
    for level in (0.5, 0.01):
        ours, model = time_best(lambda level=level: on_ready_features(Phi, y, level, 1e-8), 1)
        gap = float(model.duality_gap_[0])
        yield {
            "what": f"n=800, M=2,000, alpha 1e-8, level {level}: relative gap reached", "ratio": gap, "unit": "",
            "goal": "<= 1e-06", "met": gap <= 1e-6, "ours": ours, "baseline": None,
        }  # fmt: skip


def peak_memory() -> Iterator[Row]:
    for limit, what, goal in (("None", "stored", 1.25), ("1", "recomputed by block", None)):
        code = (
            "import re, pathlib\n"
            "from quernel import KernelQuantileRegressor\n"
            "from quernel.datasets import make_homoscedastic\n"
            "X, y, _ = make_homoscedastic(1_000_000, random_state=0)\n"
            # Not ru_maxrss: it remembers the size of the process that started this one.
            "status = pathlib.Path('/proc/self/status')\n"
            "rss = lambda: 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', status.read_text())[1])\n"
            "import quernel.kernels.numba_loops\n"
            "before = rss()\n"
            "KernelQuantileRegressor(0.5, bandwidth=1.0, n_components=300, alpha=1e-4, random_state=0,"
            f" max_memory={limit}).fit(X, y)\n"
            "print(before, rss())"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        before, after = map(int, ran.stdout.split())
        size = 1_000_000 * 300 * 8
        if goal is not None:
            ratio, unit, text, met = (after - before) / size, "x Phi", f"<= {goal}", (after - before) / size <= goal
        else:
            ratio, unit, text, met = after / 1e9, "GB", "< 1", after < 1e9
        yield {
            "what": f"peak memory of a fit, n=1,000,000, M=300, features {what}", "ratio": ratio, "unit": unit,
            "goal": text, "met": met, "ours": None, "baseline": None,
        }  # fmt: skip


LINES = [
    fits_beside_ridge,
    hard_fits_beside_ridge,
    levels_together,
    grid_beside_one_cell,
    search_beside_grid_search,
    whole_fit_beside_scikit_learn,
    growth,
    features_beside_scikit_learn,
    exact_beside_libsvm,
    estimates_beside_the_truth,
    many_features_few_rows,
    peak_memory,
]

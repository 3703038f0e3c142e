"""By simulation: conformal intervals hold what they promise, however bad the model; without calibration they do not.

The noise is normal with a known scale, so the coverage of an interval is computed for each row instead of counted.
Every promise has a negative control: the same test, without the part of the method that should bring it about, fails.
"""

import numpy as np
import pytest
from scipy.special import ndtr
from sklearn.base import BaseEstimator

from quernel import ConformalQuantileRegressor
from support.models import plain_regressor

REPETITIONS, N_TRAIN, N_CALIBRATION, N_TEST = 200, 100, 500, 500
PROMISE = (0.895, 0.915)


def scale(x):
    return 0.2 + 0.8 * x


def draw(rng, n, shifted=False):
    """Rows uniform on (0, 1) or, shifted, with the density 2 x."""
    x = rng.random(n)
    x = np.sqrt(x) if shifted else x
    return x[:, None], np.sin(6 * x) + scale(x) * rng.standard_normal(n)


def held(X, interval):
    """The probability with which each row's target lies inside, below and above."""
    x = X[:, 0]
    below, above = (
        ndtr(sign * (end - np.sin(6 * x)) / scale(x)) for sign, end in zip((1, -1), interval.T, strict=True)
    )
    return 1 - below - above, below, above


class Bins(BaseEstimator):
    """The 5 % and 95 % quantiles of the few training rows near each row: a model that is wrong, but quick."""

    def __init__(self, n_bins=20):
        self.n_bins = n_bins

    def fit(self, X, y):
        place = self._place(X)
        self.table_ = np.array(
            [np.quantile(y[place == k] if np.any(place == k) else y, [0.95, 0.05]) for k in range(self.n_bins)]
        )
        return self

    def predict(self, X):
        return self.table_[self._place(X)]

    def _place(self, X):
        return np.minimum((self.n_bins * X[:, 0]).astype(int), self.n_bins - 1)


def coverages(interval_of, seed, shifted=False):
    """The mean coverage of each repetition: (inside, below, above), shape (repetitions, 3)."""
    found = []
    for child in np.random.SeedSequence(seed).spawn(REPETITIONS):
        rng = np.random.default_rng(child)
        X_new, _ = draw(rng, N_TEST, shifted)
        found.append([np.mean(part) for part in held(X_new, interval_of(rng, X_new))])
    return np.array(found)


def standard_error(found):
    return np.std(found, axis=0, ddof=1) / np.sqrt(len(found))


def holds(share, promise=0.9):
    """Within three standard errors of the promise, or above it."""
    return share.mean() >= promise - 3 * standard_error(share)


def prefit(rng, n=N_CALIBRATION, **settings):
    """Bins fitted on some rows, wrapped but not calibrated yet, and rows to calibrate with."""
    model = Bins().fit(*draw(rng, N_TRAIN))
    return ConformalQuantileRegressor(model, method="prefit", **settings), *draw(rng, n)


@pytest.mark.slow
def test_split_intervals_cover_and_those_of_the_model_do_not():
    """An overfitted kernel model, split and calibrated with 500 rows; then the same model as it is."""
    base = plain_regressor([0.05, 0.95], n_components=12, bandwidth=0.1, alpha=1e-6, tol=0.05, random_state=0)
    raw = []

    def interval_of(rng, X_new):
        model = ConformalQuantileRegressor(base, calibration_size=N_CALIBRATION, random_state=rng)
        model.fit(*draw(rng, N_TRAIN // 2 + N_CALIBRATION))
        assert model.n_calibration_ == N_CALIBRATION
        raw.append(np.mean(held(X_new, model.estimators_[0].predict_interval(X_new))[0]))
        return model.predict_interval(X_new)

    share = coverages(interval_of, 0)[:, 0].mean()
    print(f"split: {share:.4f}; without calibration: {np.mean(raw):.4f}")
    assert PROMISE[0] <= share <= PROMISE[1]
    assert not PROMISE[0] <= np.mean(raw) <= PROMISE[1]
    assert np.mean(raw) < 0.85


def test_asymmetric_intervals_miss_equally_often_on_both_sides():
    """Each end has its own promise of 5 %; symmetric intervals of a model that is wrong on one side break it."""

    def interval_of(symmetric):
        def make(rng, X_new):
            model = Bins().fit(*draw(rng, N_TRAIN))
            model.table_[:, 0] += 0.5  # the upper end is too high
            X, y = draw(rng, N_CALIBRATION)
            wrapped = ConformalQuantileRegressor(model, method="prefit", symmetric=symmetric).fit(X, y)
            return wrapped.predict_interval(X_new)

        return make

    share, below, above = coverages(interval_of(False), 1).T
    assert holds(share)
    assert PROMISE[0] <= share.mean() <= PROMISE[1]
    for miss in (below, above):
        assert abs(miss.mean() - 0.05) <= 3 * standard_error(miss) + 1 / N_CALIBRATION
    share, below, above = coverages(interval_of(True), 1).T
    assert holds(share)
    assert below.mean() - above.mean() > 0.03


def test_every_group_is_covered_and_not_only_their_mean():
    def group(X):
        return np.where(X[:, 0] < 0.3, "calm", "wild")

    def by_group(groups):
        shares = []

        def make(rng, X_new):
            model, X, y = prefit(rng)
            interval = model.fit(X, y, groups=groups).predict_interval(X_new)
            inside = held(X_new, interval)[0]
            shares.append([inside[group(X_new) == name].mean() for name in ("calm", "wild")])
            return interval

        coverages(make, 2)
        return np.array(shares).T

    for share in by_group(group):
        assert holds(share)
        assert share.mean() <= 0.9 + 3 * standard_error(share) + 2 / (0.3 * N_CALIBRATION)
    assert not holds(by_group(None)[1])


def test_weights_restore_the_coverage_under_covariate_shift():
    """New rows have the density 2 x where calibration rows were uniform: the density ratio is 2 x."""

    def interval_of(ratio):
        def make(rng, X_new):
            model, X, y = prefit(rng)
            return model.fit(X, y, density_ratio=ratio).predict_interval(X_new)

        return make

    weighted = coverages(interval_of(lambda X: 2 * X[:, 0]), 3, shifted=True)[:, 0]
    assert holds(weighted)
    assert weighted.mean() < 0.92
    assert not holds(coverages(interval_of(None), 3, shifted=True)[:, 0])


def test_cv_plus_covers_about_as_much_as_asked():
    """The guarantee is 0.80; models of its folds by themselves are far below."""
    raw = []

    def interval_of(rng, X_new):
        model = ConformalQuantileRegressor(Bins(), method="cv+", random_state=rng).fit(*draw(rng, 200))
        raw.append(np.mean(held(X_new, np.sort(model.estimators_[0].predict(X_new)))[0]))
        return model.predict_interval(X_new)

    share = coverages(interval_of, 4)[:, 0].mean()
    print(f"CV+: {share:.4f}; without calibration: {np.mean(raw):.4f}")
    assert share >= 0.80
    assert 0.88 <= share <= 0.95  # what it usually is
    assert np.mean(raw) < 0.80


def test_the_last_rows_know_best_where_the_noise_has_changed():
    """The noise trebled 120 rows ago: the last rows calibrate for the next ones, all rows together do not."""

    def interval_of(time_ordered):
        def make(rng, X_new):
            X, y = draw(rng, 600)
            middle = np.sin(6 * X[:, 0])
            y = middle + np.where(np.arange(600) < 480, 1, 3) * (y - middle)
            model = ConformalQuantileRegressor(
                Bins(), calibration_size=100, time_ordered=time_ordered, random_state=rng
            )
            interval = model.fit(X, y).predict_interval(X_new)
            centre = np.sin(6 * X_new)
            return centre + (interval - centre) / 3  # new rows have the noise of the last ones

        return make

    assert holds(coverages(interval_of(True), 5)[:, 0])
    assert not holds(coverages(interval_of(False), 5)[:, 0])

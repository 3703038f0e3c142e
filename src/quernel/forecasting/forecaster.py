"""QuantileForecaster: quantiles of the next values of one or several series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import narwhals as nw
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from quernel._validation import check_positive
from quernel.estimators import KernelQuantileRegressor, TabularQuantileRegressor
from quernel.estimators.inputs import check_levels
from quernel.estimators.levels import rearrange
from quernel.estimators.prediction import level_names
from quernel.forecasting.features import PERIODS, CalendarFeatures, Lags
from quernel.forecasting.series import (
    DAY,
    SAME_STEP,
    Backtest,
    Index,
    Series,
    as_columns,
    count_steps,
    fill_missing,
    format_time,
    has_numbers,
    read_series,
    to_seconds,
)
from quernel.kernels.base import Seed, as_generator
from quernel.tables.frames import TableError, open_frame

Array = NDArray[np.floating]


@dataclass(frozen=True)
class ForecasterOptions:
    """Constants of the features."""

    edges: tuple[float, ...] = (0.25, 1.0, 7.0)  # in seasons: ends of the groups of steps that share a model
    seasons: tuple[int, ...] = (0, 1, 2)  # lags of the target, in seasons before the last one that is known
    long: int = 7  # seasons of the long rolling mean, the level, and of the long lag (weeks of days)
    min_periods: float = 1.5  # of a week or a year that the history must have for its harmonics
    min_level: float = 0.02  # of the mean level; where the lowest is less, values are no ratios to it
    min_rows: int = 30  # training rows of a model
    # Levels at which a kernel is fitted where more than twice as many are asked for, the others being interpolated: on
    # hires of bikes, 7 have the loss of 99 within 0.5 % at a twelfth of the price (benchmarks/level_price.json).
    n_levels: int = 7


OPTIONS = ForecasterOptions()


class QuantileForecaster(BaseEstimator):
    """Quantiles of the next values of regular series, by direct forecasts from lags, calendar and exogenous columns.

    The steps ahead are divided into groups, each with a model of its own: the first hours may look at values that are
    too old to be known for the last ones. The features of a target in a group that ends b steps ahead are its lags of
    b steps or more, rolling means that end b steps before it, harmonics of its time of day, week and year, and
    exogenous columns: of the same time if they are `known` in the future, otherwise lagged like the target. Values are
    taken relative to the longest rolling mean, the level, so that forecasts follow a trend: as ratios if no target is
    negative and the level is never near 0, otherwise as differences.

    Parameters
    ----------
    horizon : int or duration such as "24h", "31d"
        How far ahead to forecast.
    lags : sequence of int or None, default=None
        Lags in steps. Each group of steps uses those it can know. None chooses the last known values, and seasonal
        lags by `season`.
    season : int, duration or None, default=None
        The main season: a day for steps below a day, a week for steps of a day, else none.
    quantiles : float or sequence of floats, default=(0.05, 0.5, 0.95)
        Levels that `predict` returns unless it is given others.
    estimator : quantile regressor or None, default=None
        A model with ``predict(X, quantiles=...)``, whose parameter `quantiles` is set to those above; None is a
        `TabularQuantileRegressor`, which predicts any level from one fit. A `KernelQuantileRegressor` solves for each
        level: of 15 or more it is fitted at 7, and interpolates between them.
    known : sequence of str, default=()
        Exogenous columns that are known in the future, and given to `predict`: announced prices, holidays, forecasts.
    time, target, id : str or None
        Names of the columns of a table. `target` None is the only column that is no time, id or exogenous column.
        `id` names the column that identifies each of several series; they share the models.
    max_rows : int, default=20_000
        Training rows of each model at most, a random sample of more.
    random_state : int, Generator or None

    Attributes
    ----------
    models_ : list of fitted models, one for each group
    group_ends_ : list of int
        The last step of each group.
    step_ : float
        Seconds from one stamp to the next.
    level_floor_ : float or None
        Lower bound on the level if values are ratios to it, None if they are differences.
    series_ : list of the series, with which forecasts begin

    Notes
    -----
    Models whose `fit` takes `groups`, such as the default one, get blocks of time (a week, or the horizon if that is
    longer) as groups: their folds are whole blocks.

    Stamps must be regular: gaps and repeated stamps raise an error that names the first. Rows whose target is missing
    are not trained on, and stand in lags with the value of the season before.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> t = np.arange(600)
    >>> y = np.sin(2 * np.pi * t / 12) + 0.1 * rng.standard_normal(600)
    >>> forecaster = QuantileForecaster(horizon=12, season=12, random_state=0).fit(y)
    >>> forecaster.predict(quantiles=[0.1, 0.5, 0.9]).shape
    (12, 3)
    """

    def __init__(
        self,
        horizon: int | str,
        lags: Sequence[int] | None = None,
        season: int | str | None = None,
        *,
        quantiles: float | ArrayLike = (0.05, 0.5, 0.95),
        estimator: BaseEstimator | None = None,
        known: Sequence[str] = (),
        time: str = "time",
        target: str | None = None,
        id: str | None = None,
        max_rows: int = 20_000,
        random_state: Seed = None,
    ) -> None:
        self.horizon = horizon
        self.lags = lags
        self.season = season
        self.quantiles = quantiles
        self.estimator = estimator
        self.known = known
        self.time = time
        self.target = target
        self.id = id
        self.max_rows = max_rows
        self.random_state = random_state

    # Fit

    def fit(self, y: Any, X: Any = None) -> Self:
        """Fit a model for each group of steps.

        Parameters
        ----------
        y : table with a time column and the target, or array-like of shape (n,)
            A pandas Series with dates as its index has times, other arrays have steps 0, 1, ...
        X : table or array-like of shape (n, k), or None
            Exogenous columns of the same rows, besides those in y.
        """
        levels, _ = check_levels(self.quantiles)
        check_positive("max_rows", self.max_rows, integer=True)
        series, target, columns = self._read(y, X)
        step = series[0].step
        wrong = [one.key for one in series if abs(one.step - step) > SAME_STEP * step]
        if wrong:
            raise TableError(f"Series {wrong[0]!r} has another step than {series[0].key!r}. Fit them one by one.")
        self._set_layout(series, target, columns, step)
        rng = as_generator(self.random_state)
        models = []
        for end in self.group_ends_:
            rows, values, blocks = self._training_rows(series, end, rng)
            model = self._make_estimator(levels, rng)
            # Neighbouring rows are alike: with some of them in the training folds, the loss of held-out rows would be
            # too low, and intervals too narrow.
            kwargs = {"groups": blocks} if has_fit_parameter(model, "groups") else {}
            models.append(model.fit(rows, values, **kwargs))
        self.models_, self.series_, self._dated = models, series, not has_numbers(y, self.time)
        self._whole_ids = has_numbers(y, self.id) and all(key.lstrip("-").isdigit() for key in self.keys_)
        self._backend = nw.from_native(y).implementation.value if hasattr(y, "columns") else None
        return self

    def _read(self, y: Any, X: Any) -> tuple[list[Series], str, list[str]]:
        """Series of the tables, the name of the target, and those of exogenous columns."""
        table = as_columns(y, self.time, self.target or "y")
        if X is not None:
            more = open_frame(X)
            others = {name: more.get(name).array for name in more.names if name not in table}
            if more.n_rows != len(table[self.time]):
                raise TableError(f"X has {more.n_rows:,} rows, but y has {len(table[self.time]):,}.")
            table = table | others
        used = [name for name in table if name not in (self.time, self.id, self.target)]
        target = self.target
        if target is None:
            target = "y" if not hasattr(y, "columns") else None
            if target is None and len([name for name in used if name not in self.known]) == 1:
                target = next(name for name in used if name not in self.known)
            if target is None:
                raise ValueError(f"Which column is the target? Give target=... as one of {used}.")
            used = [name for name in used if name != target]
        missing = [name for name in self.known if name not in used]
        if missing:
            raise ValueError(f"There is no column {missing[0]!r}, which is said to be known; the others are {used}.")
        return read_series(table, self.time, target, used, self.id), target, used

    def _set_layout(self, series: list[Series], target: str, columns: list[str], step: float) -> None:
        """Attributes that say which features there are."""
        self.step_, self.target_, self.columns_ = step, target, columns
        self.horizon_ = count_steps(self.horizon, step)
        dated = bool(max(one.times[-1] for one in series) > 366 * DAY)  # numbers of steps have no calendar
        if self.season is not None:
            season = count_steps(self.season, step, "season")
        else:
            season = round(DAY / step) if dated and step < DAY else 7 if dated and step == DAY else 1
        self.season_ = season
        shortest = min(len(one.y) for one in series)
        span = shortest * step
        self.harmonics_ = {
            name: 3
            for name, period in PERIODS.items()
            if dated and step <= period / 4 and span >= OPTIONS.min_periods * period
        }
        ends = {round(edge * season) for edge in OPTIONS.edges if season > 1}
        self.group_ends_ = sorted({end for end in ends if 1 <= end < self.horizon_} | {self.horizon_})
        self._long = OPTIONS.long * season if shortest >= 4 * OPTIONS.long * season + self.horizon_ else season
        self.keys_ = [one.key for one in series]
        self.level_floor_ = self._find_level_floor(series)
        for end in self.group_ends_:
            if shortest < max(self._lags(end)) + OPTIONS.min_rows:
                raise TableError(
                    f"The shortest series has {shortest:,} rows; forecasts of {end:,} steps with lags up to "
                    f"{max(self._lags(end)):,} need {max(self._lags(end)) + OPTIONS.min_rows:,}. Shorten the horizon, "
                    "the season or the lags."
                )

    def _find_level_floor(self, series: list[Series]) -> float | None:
        """Lower bound on levels that values are divided by; None if values are differences from the level instead."""
        filled = [fill_missing(one.y, self.season_) for one in series]
        levels = [Lags([], rolling=[self._long]).fit(y).transform(y)[:, 0] for y in filled]
        lowest = min(float(np.nanmin(one)) for one in levels)
        if min(float(np.nanmin(y)) for y in filled) < 0 or any(
            np.nanmin(one) < OPTIONS.min_level * np.nanmean(one) for one in levels
        ):
            return None
        return OPTIONS.min_level * lowest

    def _lags(self, end: int) -> list[int]:
        """Lags of the group that ends at this step, none of which looks into the future."""
        if self.lags is not None:
            possible = sorted({int(lag) for lag in self.lags if lag >= end})
            if not possible:
                raise ValueError(
                    f"Each of lags={list(self.lags)} would look into the future for steps up to {end}. Add a lag of "
                    f"{end} or more, or shorten the horizon."
                )
            return possible
        season, first = self.season_, -(-end // self.season_)
        seasonal = {season * (first + k) for k in OPTIONS.seasons}
        return sorted({end, end + 1} | seasonal | {self._long * -(-end // self._long)})

    def _features(self, one: Series, end: int) -> tuple[Array, Array]:
        """Features of all rows (n, d) as known `end` steps before, and the level (n,) that values are relative to."""
        y = fill_missing(one.y, self.season_)
        known = [name in self.known for name in self.columns_]
        lags, windows = self._lags(end), sorted({self.season_, self._long})
        past = Lags(lags, end, rolling=windows).fit(y).transform(y)
        level = past[:, -1]
        if self.level_floor_ is None:
            relative = np.column_stack([past[:, :-1] - level[:, None], level])
        else:  # without the level itself, so that growth leads to no values that were never seen
            level = np.maximum(level, self.level_floor_)
            relative = past[:, :-1] / level[:, None] - 1
        others = one.X[:, ~np.array(known, dtype=bool)]
        unknown = Lags(lags[:2], end).fit(others).transform(others) if others.shape[1] else others
        calendar = CalendarFeatures(self.harmonics_).transform(one.times)
        which = np.tile(np.array(self.keys_) == one.key, (len(y), 1)) if len(self.keys_) > 1 else np.empty((len(y), 0))
        return np.column_stack([relative, unknown, one.X[:, known], calendar, which]), level

    def _to_relative(self, y: Array, level: Array) -> Array:
        return y - level if self.level_floor_ is None else y / level - 1

    def _training_rows(self, series: list[Series], end: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Rows and relative targets of all series, at most `max_rows`, and the block of time to which each belongs."""
        rows, values, blocks, length = [], [], [], self.step_ * max(self._long, end)
        for one in series:
            X, level = self._features(one, end)
            fine = np.isfinite(one.y) & np.isfinite(X).all(axis=1)
            rows.append(X[fine])
            values.append(self._to_relative(one.y[fine], level[fine]))
            blocks.append(np.floor(one.times[fine] / length))
        X, y, block = np.concatenate(rows), np.concatenate(values), np.concatenate(blocks)
        if len(y) < OPTIONS.min_rows:
            raise TableError(f"Only {len(y)} rows have a target and all their lags; at least {OPTIONS.min_rows} must.")
        if len(y) > self.max_rows:
            some = np.sort(rng.choice(len(y), int(self.max_rows), replace=False))
            X, y, block = X[some], y[some], block[some]
        return X, y, block

    def _make_estimator(self, levels: Array, rng: np.random.Generator) -> BaseEstimator:
        if self.estimator is None:
            return TabularQuantileRegressor(random_state=int(rng.integers(2**31)))
        unfitted = clone(self.estimator)
        if "quantiles" not in unfitted.get_params(deep=False):
            return unfitted
        return unfitted.set_params(quantiles=_thin(levels) if isinstance(unfitted, KernelQuantileRegressor) else levels)

    # Predict

    def predict(self, X: Any = None, quantiles: float | ArrayLike | None = None) -> Any:
        """Forecast quantiles of the values after the last ones known.

        Parameters
        ----------
        X : int, duration, table or None
            How many steps, by default all of the horizon; or a table of the future with the time column (and id) and
            the `known` columns, one row per step.
        quantiles : float, sequence of floats or None
            Levels; None is those of the constructor.

        Returns
        -------
        data frame like that of `fit`, or ndarray of shape (steps, q) or (steps,)
            A frame has the columns time, id, q0.05, ...; it is an array if `fit` was given one, of one dimension for
            one level given as a float. Levels never cross.
        """
        check_is_fitted(self)
        levels, single = check_levels(self.quantiles if quantiles is None else quantiles)
        future = self._future(X)
        curves = [self._forecast(one, ahead, levels) for one, ahead in zip(self.series_, future, strict=True)]
        if self._backend is None:
            return curves[0][:, 0] if single else curves[0]
        return self._as_table([ahead.times for ahead in future], curves, levels)

    def _future(self, X: Any) -> list[Series]:
        """The rows to forecast, for each series."""
        if X is None or isinstance(X, int | np.integer | str):
            if self.known:
                raise ValueError(f"Future values of {list(self.known)} are needed: give predict a table with them.")
            steps = self.horizon_ if X is None else count_steps(X, self.step_)
            ahead = self.step_ * np.arange(1, steps + 1)
            empty = np.zeros((steps, len(self.columns_)))
            given = [
                replace(one, times=one.times[-1] + ahead, y=np.full(steps, np.nan), X=empty) for one in self.series_
            ]
        else:
            given = self._read_future(X)
        for one, last in zip(given, self.series_, strict=True):
            expected = last.times[-1] + self.step_ * np.arange(1, len(one.times) + 1)
            if not len(one.times) or not np.allclose(one.times, expected, rtol=0, atol=1e-3 * self.step_):
                raise TableError(
                    f"The rows to forecast must follow {format_time(last.times[-1])}, the last time known, one step "
                    f"of {self.step_:g} s after the other."
                )
            if len(one.times) > self.horizon_:
                raise ValueError(
                    f"{len(one.times)} steps are asked for, but the forecaster was made for horizon={self.horizon!r}."
                )
        return given

    def _read_future(self, X: Any) -> list[Series]:
        table = open_frame(X)
        if self.time not in table.names:
            if len(self.series_) > 1:
                raise TableError(f"The future of several series needs the columns {self.time!r} and {self.id!r}.")
            times = self.series_[0].times[-1] + self.step_ * np.arange(1, table.n_rows + 1)
            table = open_frame({self.time: times} | {name: table.get(name).array for name in table.names})
        columns = list(self.known)
        found = {one.key: one for one in read_series(table, self.time, None, columns, self.id)}
        if set(found) != set(self.keys_):
            raise TableError(f"The future has the series {sorted(found)}, but those fitted are {sorted(self.keys_)}.")
        places, future = [self.columns_.index(name) for name in columns], []
        for key in self.keys_:
            full = np.zeros((len(found[key].times), len(self.columns_)))
            full[:, places] = found[key].X
            future.append(replace(found[key], X=full))
        return future

    def _forecast(self, one: Series, ahead: Series, levels: Array) -> Array:
        """Quantiles (steps, q) of a series at the times of `ahead`."""
        steps = len(ahead.times)
        whole = Series(
            one.key,
            np.concatenate([one.times, ahead.times]),
            one.step,
            np.concatenate([one.y, np.full(steps, np.nan)]),
            np.concatenate([one.X, ahead.X]),
        )
        ahead_by = np.arange(1, steps + 1)
        return self._predict_steps(whole, len(one.y) - 1 + ahead_by, ahead_by, levels)

    def _predict_steps(self, whole: Series, index: Index, steps: Index, levels: Array) -> Array:
        """Quantiles (n, q) of the rows at `index` (n,), each so many `steps` (n,) after the last that is known."""
        curves, begin = np.empty((len(index), len(levels))), 0
        for end, model in zip(self.group_ends_, self.models_, strict=True):
            mine = (steps > begin) & (steps <= end)
            if mine.any():
                curves[mine] = self._predict_rows(whole, end, model, index[mine], levels)
            begin = end
        return curves

    def _predict_rows(self, whole: Series, end: int, model: BaseEstimator, index: Index, levels: Array) -> Array:
        X, level = self._features(whole, end)
        relative = np.asarray(model.predict(X[index], quantiles=levels), dtype=float).reshape(len(index), -1)
        relative, level = rearrange(relative, levels), level[index][:, None]
        return relative + level if self.level_floor_ is None else (1 + relative) * level

    def backtest(self, y: Any, X: Any = None, *, start: Any, every: Any = None, quantiles: Any = None) -> Backtest:
        """Forecast from many origins, as it would have been at each: the models are those of `fit`.

        Parameters
        ----------
        y, X : as in `fit`
            One series, with the values that the forecasts are compared with.
        start : date, or number of the row
            The first time that is forecast.
        every : int, duration or None
            From one origin to the next; None is the horizon, so that each time is forecast once.
        quantiles : sequence of floats or None

        Returns
        -------
        Backtest
        """
        check_is_fitted(self)
        levels, _ = check_levels(self.quantiles if quantiles is None else quantiles)
        (one,), _, columns = self._read(y, X)
        if columns != self.columns_:
            raise TableError(f"y and X have the columns {columns}, but the forecaster was fitted to {self.columns_}.")
        stride = self.horizon_ if every is None else count_steps(every, self.step_, "every")
        first = start
        if not isinstance(start, int | np.integer):
            first = int(np.searchsorted(one.times, to_seconds(np.atleast_1d(np.asarray(start)))[0]))
        if not max(self._lags(self.horizon_)) <= first < len(one.y):
            raise ValueError(f"start={start!r} must lie within the series, after the longest lag.")
        origins = np.arange(first, len(one.y), stride)
        index = (origins[:, None] + np.arange(self.horizon_)).ravel()
        steps = np.tile(np.arange(1, self.horizon_ + 1), len(origins))
        inside = index < len(one.y)
        index, steps = index[inside], steps[inside]
        curves = self._predict_steps(one, index, steps, levels)
        return Backtest(
            one.times[index], np.repeat(origins, self.horizon_)[inside], steps, one.y[index], curves, levels
        )

    def _as_table(self, times: list[Array], curves: list[Array], levels: Array) -> Any:
        """Forecasts as a table of the library that `fit` was given."""
        seconds = np.concatenate(times)
        stamps = np.round(seconds * 1e6).astype("M8[us]") if self._dated else seconds
        table: dict[str, Any] = {self.time: stamps}
        if self.id is not None:
            # Whole numbers are written as such, so that forecasts can be joined to other tables.
            keys = np.array([one.key for one in self.series_])
            keys = keys.astype(int) if self._whole_ids else keys
            table[self.id] = np.repeat(keys, [len(one) for one in times])
        table |= dict(zip(level_names(levels), np.concatenate(curves).T, strict=True))
        assert self._backend is not None
        return nw.from_dict(table, backend=self._backend).to_native()


def _thin(levels: Array) -> Array:
    """Return all levels, or of many the outermost and those nearest to evenly spaced normal scores between them."""
    if len(levels) <= 2 * OPTIONS.n_levels:
        return levels
    ascending = np.sort(levels)
    scores = ndtri(ascending)
    spaced = np.linspace(scores[0], scores[-1], OPTIONS.n_levels)
    return ascending[np.unique(np.argmin(np.abs(scores - spaced[:, None]), axis=1))]

"""Features of time: lags and rolling means that a horizon allows, harmonics of the calendar, holidays; and weather.

Weather is unknown in the future: past years' weather of the same season is an ensemble, whose forecasts are mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_positive
from quernel.forecasting.series import DAY, infer_step, to_seconds

Array = NDArray[np.floating]

PERIODS = {"day": DAY, "week": 7 * DAY, "year": 365.2425 * DAY}
# 1970-01-01 was a Thursday: weeks begin on Monday.
MONDAY = 4 * DAY


def _check_columns(X: Any) -> Array:
    values = np.asarray(X, dtype=float)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2:
        raise ValueError(f"Expected a series, or one per column; got an array of {values.ndim} dimensions.")
    return values


class Lags(TransformerMixin, BaseEstimator):
    """Past values of regular series, and means of them, as they are known `horizon` steps ahead.

    Row t has x[t - lag] for each lag, and the mean of x[t - horizon - window + 1], ..., x[t - horizon] for each rolling
    window. A lag below the horizon is refused: at the forecast origin, its value is not known yet.

    Parameters
    ----------
    lags : sequence of int
        Steps back, each at least `horizon`.
    horizon : int, default=1
        Steps from the last known value to the farthest row that is forecast.
    rolling : sequence of int, default=()
        Lengths of rolling means.

    Attributes
    ----------
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> import numpy as np
    >>> Lags([2, 3], horizon=2, rolling=[2]).fit_transform(np.arange(5.0)).tolist()[-1]
    [2.0, 1.0, 1.5]
    """

    def __init__(self, lags: Sequence[int], horizon: int = 1, *, rolling: Sequence[int] = ()) -> None:
        self.lags = lags
        self.horizon = horizon
        self.rolling = rolling

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Keep the last rows of X, (n,) or (n, k), regular series in time order, for `transform_future`."""
        values = _check_columns(X)
        check_positive("horizon", self.horizon, integer=True)
        for name, given in (("lags", self.lags), ("rolling", self.rolling)):
            for one in given:
                check_positive(f"Each of {name}", one, integer=True)
        early = sorted(lag for lag in self.lags if lag < self.horizon)
        if early:
            raise ValueError(
                f"Lags {early} would look into the future: {self.horizon} steps ahead, only values at least "
                f"{self.horizon} steps back are known. Use lags of {self.horizon} or more, or a shorter horizon."
            )
        self.n_features_in_ = values.shape[1]
        self.__dict__.pop("feature_names_in_", None)
        columns = list(getattr(X, "columns", []))
        if columns and all(isinstance(name, str) for name in columns):
            self.feature_names_in_: NDArray[np.object_] = np.array(columns, dtype=object)
        reach = max([*self.lags, *(self.horizon + window - 1 for window in self.rolling)], default=1)
        self._tail = values[-reach:].copy()
        return self

    def transform(self, X: Any) -> Array:
        """Return lags and rolling means of the rows of X, shape (n, k (lags + windows)); NaN where X begins too late.

        Columns are ordered by lags and windows, within each by the columns of X.
        """
        check_is_fitted(self)
        values = _check_columns(X)
        if values.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {values.shape[1]} columns, but Lags was fitted to {self.n_features_in_}.")
        n, k = values.shape
        columns = []
        for lag in self.lags:
            shifted = np.full((n, k), np.nan)
            shifted[lag:] = values[: max(n - lag, 0)]
            columns.append(shifted)
        total = np.concatenate([np.zeros((1, k)), np.cumsum(np.nan_to_num(values), axis=0)])
        missing = np.concatenate([np.zeros((1, k)), np.cumsum(np.isnan(values), axis=0)])
        for window in self.rolling:
            mean, first = np.full((n, k), np.nan), window + self.horizon - 1
            if first < n:
                ends = np.arange(first, n) - self.horizon + 1
                mean[first:] = (total[ends] - total[ends - window]) / window
                mean[first:][missing[ends] > missing[ends - window]] = np.nan
            columns.append(mean)
        return np.concatenate(columns, axis=1) if columns else np.empty((n, 0))

    def transform_future(self, steps: int | None = None) -> Array:
        """Return the rows that follow those of `fit`, shape (steps, ...); all of the horizon by default."""
        check_is_fitted(self)
        steps = self.horizon if steps is None else steps
        check_positive("steps", steps, integer=True)
        if steps > self.horizon:
            raise ValueError(f"{steps} steps are asked for, but the lags are those of a horizon of {self.horizon}.")
        unknown = np.full((steps, self.n_features_in_), np.nan)
        return self.transform(np.concatenate([self._tail, unknown]))[-steps:]

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Return names such as load_lag24 and load_mean168, or x0_lag24 where the columns have no names."""
        check_is_fitted(self)
        known = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        given = known if input_features is None else input_features
        names = [str(name) for name in np.asarray(given, dtype=object)]
        kinds = [f"lag{lag}" for lag in self.lags] + [f"mean{window}" for window in self.rolling]
        return np.array([f"{name}_{kind}" for kind in kinds for name in names], dtype=object)


class _FromTimes(TransformerMixin, BaseEstimator):
    """A transformer of a column of dates that learns nothing."""

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Check the parameters; dates are known in advance, so there is nothing to learn."""
        self.transform(X[:1])
        self.n_features_in_ = 1
        return self

    def transform(self, X: Any) -> Array:
        raise NotImplementedError


class CalendarFeatures(_FromTimes):
    """Cosines and sines of the time of day, week and year: features that are known for every future date.

    Parameters
    ----------
    harmonics : dict from "day", "week" or "year" to int, or None
        Number of harmonics of each period; None is 3 each. Three of the week distinguish the weekdays of daily data.

    Examples
    --------
    >>> import numpy as np
    >>> CalendarFeatures({"day": 1}).fit_transform(np.array(["2026-11-16 03:00"], dtype="M8[s]")).round(6).tolist()
    [[0.707107, 0.707107]]
    """

    def __init__(self, harmonics: Mapping[str, int] | None = None) -> None:
        self.harmonics = harmonics

    def transform(self, X: Any) -> Array:
        """Return cos and sin of 2 pi k (phase) for the dates X, shape (n,); the result has shape (n, 2 harmonics)."""
        seconds = to_seconds(X)
        columns = []
        for period, count in self._harmonics().items():
            phase = 2 * np.pi * np.mod(seconds + (DAY * 7 - MONDAY if period == "week" else 0), PERIODS[period])
            phase = phase / PERIODS[period]
            columns += [wave(k * phase) for k in range(1, count + 1) for wave in (np.cos, np.sin)]
        return np.column_stack(columns) if columns else np.empty((len(seconds), 0))

    def _harmonics(self) -> dict[str, int]:
        given = dict.fromkeys(PERIODS, 3) if self.harmonics is None else dict(self.harmonics)
        for period, count in given.items():
            if period not in PERIODS or isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise ValueError(
                    "harmonics must give whole numbers for 'day', 'week' or 'year', such as {'day': 3}; got "
                    f"{self.harmonics!r}."
                )
        return given

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:  # noqa: ARG002
        """Return names such as day_cos1."""
        names = [f"{p}_{w}{k}" for p, n in self._harmonics().items() for k in range(1, n + 1) for w in ("cos", "sin")]
        return np.array(names, dtype=object)


class Holidays(_FromTimes):
    """Public holidays of a country as three columns of 0 and 1: on a holiday, the day before one, the day after one.

    It needs the package `holidays`: ``pip install "quernel[holidays]"``.

    Parameters
    ----------
    country : str
        ISO code, such as "US" or "CH".
    subdivision : str or None, default=None
        Of a state, province or canton.
    """

    def __init__(self, country: str, subdivision: str | None = None) -> None:
        self.country = country
        self.subdivision = subdivision

    def transform(self, X: Any) -> Array:
        """Return the three columns of the dates X of shape (n,)."""
        days = np.floor(to_seconds(X) / DAY).astype(int)
        known = self._known_days(1970 + days.min() // 366 - 1, 1970 + days.max() // 365 + 1) if len(days) else []
        return np.column_stack([np.isin(days + shift, known) for shift in (0, 1, -1)]).astype(float)

    def _known_days(self, first: int, last: int) -> list[int]:
        """Days since 1970 that are holidays, of these years."""
        try:
            import holidays
        except ImportError as error:
            raise ImportError('Holidays needs the package holidays: pip install "quernel[holidays]".') from error
        try:
            found = holidays.country_holidays(self.country, subdiv=self.subdivision, years=range(first, last + 1))
        except NotImplementedError as error:
            raise ValueError(f"Unknown country or subdivision: {error}") from error
        return [int(np.datetime64(day).astype("M8[D]").astype(int)) for day in found]

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:  # noqa: ARG002
        """Return the names of the three columns."""
        return np.array(["holiday", "holiday_eve", "holiday_after"], dtype=object)


class WeatherScenarios(BaseEstimator):
    """Scenarios of future weather: what the same season brought in every past year, shifted by some days.

    For a period to forecast, each past year and each shift of -`shifts` to `shifts` days gives one scenario, the
    weather that followed the same calendar date. It begins at the weather of the forecast origin: the difference
    between the last day known and the day before the scenario decays by the factor `persistence` per day.

    Predict with the model for every scenario, and take the quantiles of all predictions together
    (`mixture_quantiles`): the forecast has the uncertainty of the weather as well as that of the model.

    Parameters
    ----------
    shifts : int, default=4
        Largest shift in days; there are 2 shifts + 1 scenarios for each past year.
    persistence : float, default=0.7
        Share of today's anomaly that is left after a day, from 0 to below 1.
    recent_years : int or None, default=None
        Use this many past years at most; None uses all.

    Attributes
    ----------
    step_ : float
        Seconds between rows.
    """

    def __init__(self, shifts: int = 4, persistence: float = 0.7, *, recent_years: int | None = None) -> None:
        self.shifts = shifts
        self.persistence = persistence
        self.recent_years = recent_years

    def fit(self, weather: ArrayLike, times: Any) -> Self:
        """Keep the weather, shape (n,) or (n, k), at regular times (n,), the last of which is the forecast origin."""
        if isinstance(self.shifts, bool) or not isinstance(self.shifts, int) or self.shifts < 0:
            raise ValueError(f"shifts must be a whole number of days, 0 or more; got {self.shifts!r}.")
        if not 0 <= self.persistence < 1:
            raise ValueError(f"persistence must be from 0 to below 1; got {self.persistence!r}.")
        check_positive("recent_years", self.recent_years, integer=True, others=(None,))
        values, seconds = np.asarray(weather, dtype=float), to_seconds(times)
        if len(values) != len(seconds) or not np.all(np.isfinite(values)):
            raise ValueError(
                f"weather must have one finite value for each of {len(seconds)} times; got shape {values.shape}."
            )
        self.step_ = infer_step(seconds)
        self._weather, self._times = values.reshape(len(values), -1), seconds
        return self

    def transform(self, times: Any, *, history: int = 0) -> Array:
        """Return scenarios for future times that follow those of `fit`, shape (S, history + n, k).

        The first `history` rows are the last weather known, for features that look back from the first hours.
        """
        check_is_fitted(self)
        seconds = to_seconds(times)
        lead = seconds - self._times[-1]
        if not len(lead) or not np.allclose(lead, self.step_ * np.arange(1, len(lead) + 1)):
            raise ValueError("times must follow the last time of fit, one step after the other.")
        day = max(round(DAY / self.step_), 1)
        starts = self._starts(seconds[0], len(lead), day)
        if not len(starts):
            raise ValueError("There is no past year of weather for this season; give a longer history.")
        future = np.array([self._weather[start : start + len(lead)] for start in starts])
        if self.persistence > 0:
            today = self._weather[-day:].mean(axis=0)
            before = np.array([self._weather[start - day : start].mean(axis=0) for start in starts])
            decay = self.persistence ** (lead / DAY)
            future = future + (today - before)[:, None] * decay[None, :, None]
        known = np.broadcast_to(self._weather[len(self._weather) - history :], (len(starts), history, future.shape[2]))
        return np.concatenate([known, future], axis=1)

    def _starts(self, first: float, length: int, day: int) -> list[int]:
        """Positions at which the scenarios begin, in the order of years and shifts."""
        when = np.datetime64(round(first), "s")
        year, n = int(when.astype("M8[Y]").astype(int)) + 1970, len(self._times)
        earliest = int(self._times[0] // (366 * DAY)) + 1969
        if self.recent_years is not None:
            earliest = max(earliest, year - self.recent_years)
        starts = []
        for past in range(earliest, year):
            position = round((_same_date(when, past - year) - self._times[0]) / self.step_)
            for shift in range(-self.shifts, self.shifts + 1):
                start = position + shift * day
                if day <= start and start + length <= n:
                    starts.append(start)
        return starts


def _same_date(when: np.datetime64, years: int) -> float:
    """Seconds since 1970 of the same month, day and hour some years later; 29 February becomes 1 March."""
    month = when.astype("M8[M]")
    within = when - month.astype("M8[s]")
    return float(((month + np.timedelta64(12 * years, "M")).astype("M8[s]") + within).astype(np.int64))


def mixture_quantiles(values: ArrayLike, levels: ArrayLike, weights: ArrayLike | None = None) -> Array:
    """Return quantiles of the mixture of an ensemble, shape (n, q).

    Parameters
    ----------
    values : array-like of shape (S, n) or (S, n, r)
        Predictions of S members for n rows; r equally likely values each, such as quantiles at evenly spaced levels.
    levels : array-like of shape (q,)
    weights : array-like of shape (S,) or None
        Weights of the members, equal by default.
    """
    ensemble = np.asarray(values, dtype=float)
    ensemble = ensemble[:, :, None] if ensemble.ndim == 2 else ensemble
    members, n, r = ensemble.shape
    share = np.full(members, 1 / members) if weights is None else np.asarray(weights, dtype=float)
    if share.shape != (members,) or not np.all(share >= 0) or not share.sum() > 0:
        raise ValueError(f"weights must be one number, 0 or more, for each of {members} members; got {share!r}.")
    pooled = np.moveaxis(ensemble, 1, 0).reshape(n, members * r)
    order = np.argsort(pooled, axis=1)
    weight = np.repeat(share / share.sum() / r, r)[order]
    middle = np.cumsum(weight, axis=1) - weight / 2  # each value stands for the middle of its weight
    pooled = np.take_along_axis(pooled, order, axis=1)
    wanted = np.asarray(levels, dtype=float)
    return np.array([np.interp(wanted, m, v) for m, v in zip(middle, pooled, strict=True)])

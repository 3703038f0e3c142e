"""Weather that is unknown in the future: past years' weather of the same season as an ensemble, and its mixture."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_positive
from quernel.forecasting.series import DAY, infer_step, to_seconds

Array = NDArray[np.floating]


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
        if self.recent_years is not None:
            check_positive("recent_years", self.recent_years, integer=True)
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

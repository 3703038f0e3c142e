"""The periodic x Gaussian product kernel, for columns such as hour of the day beside columns such as temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ive, ndtr

from quernel.kernels.fourier import ShiftInvariantKernel

Array = NDArray[np.floating]

# Harmonics beyond this many standard deviations have a probability below 1e-20.
MAX_DEVIATIONS = 12


@dataclass(frozen=True, eq=False)
class Periodic(ShiftInvariantKernel):
    """Product of periodic and Gaussian kernels:  K(x, z) = exp(-sum_j c_j^2 / (2 bandwidth_j^2)).

    For a column of period p, c = (p / pi) sin(pi (x - z) / p) is the chord between x and z on a circle of circumference
    p; for one of infinite period, the distance x - z itself. So hours 23 and 0 are neighbours, and the kernel of a
    column whose period is infinite, or much longer than its range, is Gaussian.

    By its Fourier series, the spectral measure of a periodic column is that of 2 pi k / p with k the difference of two
    Poisson numbers of mean (p / (2 pi bandwidth))^2 / 2 each (a Skellam distribution). So random features have exactly
    the period p.

    Parameters
    ----------
    bandwidth : float, one float per column, or None
        As in every shift-invariant kernel, in the units of the columns.
    period : float or one float per column, default=inf
        Periods of the columns, ``np.inf`` for columns that have none.

    Examples
    --------
    >>> import numpy as np
    >>> daily = Periodic([3.0, 5.0], period=[24, np.inf])  # hour of the day, temperature
    >>> daily.gram(np.array([[23.5, 10.0]]), np.array([[0.5, 10.0], [12.0, 10.0]])).round(3)
    array([[0.946, 0.04 ]])
    """

    name: ClassVar[str] = "periodic"
    period: ArrayLike = np.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            period = np.array(self.period, dtype=float)
        except (TypeError, ValueError):
            period = np.array(np.nan)
        if period.ndim > 1 or period.size == 0 or not np.all(period > 0):
            raise ValueError(
                "period must be positive, one number or one per column, np.inf for columns without a period; got "
                f"{self.period!r}."
            )
        period.flags.writeable = False
        object.__setattr__(self, "period", float(period) if period.ndim == 0 else period)

    def check_columns(self, n_columns: int) -> None:
        """Raise a ValueError if there are several bandwidths or periods, but not one per column."""
        super().check_columns(n_columns)
        self._periods(n_columns)

    def _periods(self, n_columns: int) -> Array:
        """The periods, shape (n_columns,)."""
        period = np.asarray(self.period, dtype=float)
        if period.ndim == 1 and len(period) != n_columns:
            raise ValueError(
                f"period has {len(period)} entries but X has {n_columns} columns; give one number or one per column."
            )
        return np.broadcast_to(period, (n_columns,))

    def _squared_chords(self, X: Array, Z: Array, column: int) -> Array:
        """c_j^2 / bandwidth_j^2 of one column j, shape (len(X), len(Z))."""
        period, width = self._periods(X.shape[1])[column], self.scale(X.shape[1])[column]
        distance = np.subtract.outer(np.asarray(X[:, column], dtype=float), np.asarray(Z[:, column], dtype=float))
        if np.isfinite(period):
            distance = period / np.pi * np.sin(np.pi / period * distance)
        return (distance / width) ** 2

    def gram(self, X: Array, Z: Array) -> Array:
        """exp(-sum_j c_j^2 / (2 bandwidth_j^2))."""
        self.check_columns(X.shape[1])
        total = np.zeros((len(X), len(Z)))
        for column in range(X.shape[1]):
            total += self._squared_chords(X, Z, column)
        return np.exp(-total / 2)

    def bandwidth_gradient(self, X: Array, weight: Array) -> Array:
        """dK / dlog bandwidth_j = K c_j^2 / bandwidth_j^2."""
        weighted = np.asarray(weight) * self.gram(X, X)
        return np.array([np.sum(weighted * self._squared_chords(X, X, column)) for column in range(X.shape[1])])

    def frequencies_from(self, normal: Array, mixing: Array) -> Array:  # noqa: ARG002
        """Normal numbers over the bandwidth; for periodic columns, harmonics at the same quantiles (d, M)."""
        frequencies = np.array(normal / self.scale(len(normal))[:, None])
        for column, (period, width) in enumerate(zip(self._periods(len(normal)), self.scale(len(normal)), strict=True)):
            if np.isfinite(period):
                harmonic = _skellam_quantiles(ndtr(normal[column]), (period / (2 * np.pi * width)) ** 2)
                frequencies[column] = 2 * np.pi / period * harmonic
        return frequencies

    def _standard_frequencies(self, normal: Array, mixing: Array) -> Array:
        raise NotImplementedError


def _skellam_quantiles(uniform: Array, variance: float) -> Array:
    """Quantiles of the difference of two Poisson numbers, whose variance is given, by inverting exp(-v) I_k(v)."""
    largest = int(np.ceil(MAX_DEVIATIONS * np.sqrt(variance))) + MAX_DEVIATIONS
    harmonics = np.arange(-largest, largest + 1)
    cumulative = np.cumsum(ive(np.abs(harmonics), variance))
    return harmonics[np.minimum(np.searchsorted(cumulative, uniform), 2 * largest)].astype(float)

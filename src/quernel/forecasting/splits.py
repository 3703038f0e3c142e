"""Rolling-origin evaluation: splits by time, and forecasts from many origins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel._validation import check_positive
from quernel.forecasting.series import to_duration, to_seconds

Array = NDArray[np.floating]
Index = NDArray[np.intp]


def time_splits(
    times: Any, n_splits: int = 5, *, horizon: Any, gap: Any = 0, window: Any = None
) -> list[tuple[Index, Index]]:
    """Return (train, test) index arrays of a rolling origin, for the `cv` of scikit-learn's and our searches.

    The last split tests on the last `horizon` of the data, the one before on the `horizon` before it, and so on. Rows
    are divided by their times, not their positions: they may be in any order, and of several series.

    Parameters
    ----------
    times : array-like of shape (n,), dates or numbers
    n_splits : int, default=5
    horizon : duration such as "31d", or number of steps
        Length of each test window. A step is the median time from one distinct stamp to the next.
    gap : duration or number of steps, default=0
        Time between the last training row and the first test row, such as the delay after which targets are known.
    window : duration, number of steps or None, default=None
        Length of the training window that slides along; None trains on everything before (an expanding window).

    Examples
    --------
    >>> import numpy as np
    >>> [(train.tolist(), test.tolist()) for train, test in time_splits(np.arange(6), 2, horizon=2)]
    [([0, 1], [2, 3]), ([0, 1, 2, 3], [4, 5])]
    """
    check_positive("n_splits", n_splits, integer=True)
    seconds = to_seconds(times)
    stamps = np.unique(seconds)
    if len(stamps) < 2:
        raise ValueError(f"time_splits needs at least two different times; got {len(stamps)}.")
    step = float(np.median(np.diff(stamps)))
    ahead, behind = to_duration(horizon, step), to_duration(gap, step, "gap")
    length = np.inf if window is None else to_duration(window, step, "window")
    if ahead <= 0 or behind < 0 or length <= 0:
        raise ValueError(f"horizon and window must be positive, gap 0 or more; got {horizon!r}, {window!r}, {gap!r}.")
    splits = []
    for k in range(n_splits, 0, -1):
        # Half a step after the last training row: no stamp is that near to an edge, whatever the rounding.
        origin = stamps[-1] + step / 2 - k * ahead
        last = origin - behind
        train = np.flatnonzero((seconds <= last) & (seconds > last - length))
        test = np.flatnonzero((seconds > origin) & (seconds <= origin + ahead))
        if not len(train) or not len(test):
            raise ValueError(
                f"{n_splits} splits of {horizon!r} with a gap of {gap!r} leave no rows to "
                f"{'test' if len(train) else 'train'} on. Use fewer splits or a shorter horizon."
            )
        splits.append((train, test))
    return splits


@dataclass(frozen=True, eq=False)
class Backtest:
    """Forecasts from many origins beside what came.

    Attributes
    ----------
    times : ndarray of shape (n,), seconds since 1970
    origins : ndarray of shape (n,), number of the first row that was not known
    steps : ndarray of shape (n,), steps ahead
    y : ndarray of shape (n,)
    quantiles : ndarray of shape (n, q)
    levels : ndarray of shape (q,)
    """

    times: Array
    origins: NDArray[np.intp]
    steps: NDArray[np.intp]
    y: Array
    quantiles: Array
    levels: Array

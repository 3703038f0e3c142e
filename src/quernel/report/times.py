"""Ticks of dates and of times of day: where years, months, days or hours begin."""

from __future__ import annotations

import numpy as np

from quernel.report.columns import day, time_of_day
from quernel.report.svg import Ticks

MINUTE, HOUR, DAY = 60, 3600, 86_400
# Seconds between ticks, as on a clock.
CLOCK_STEPS = (
    *(1, 5, 15, 30, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 6 * HOUR, 12 * HOUR, DAY),
)
# Steps between ticks, as in a calendar, and how many there may be: the names of days are the longest.
CALENDAR_STEPS = (
    *(("D", step, 4) for step in (1, 2, 4, 7, 14)),
    *(("M", step, 6) for step in (1, 2, 3, 4, 6)),
    *(("Y", factor * 10**power, 7) for power in range(4) for factor in (1, 2, 5)),
)


def clock_ticks(low: float, high: float) -> Ticks:
    """Round times of day, given in seconds since midnight."""
    return [(at, time_of_day(at)) for at in _clock(low, high, 6)]


def calendar_ticks(low: float, high: float) -> Ticks:
    """Years, months or days that begin between two dates, given in seconds since 1970; within two days, hours."""
    if high - low < 2 * DAY:  # days are named where they begin, or once
        hours = _clock(low, high, 5)
        named = [at for at in hours if at % DAY == 0] or hours[:1]
        return [(at, day(at) if at in named else time_of_day(at % DAY)) for at in hours]
    first, last = (np.datetime64(round(at), "s") for at in (low, high))
    for unit, step, most in CALENDAR_STEPS:
        begins = np.arange(first.astype(f"datetime64[{unit}]"), last.astype(f"datetime64[{unit}]") + 1)
        count = begins.astype(int) + (1970 if unit == "Y" else 0)
        found = begins[(begins >= first) & (count % step == 0)]
        if len(found) <= most:
            break
    return [(float(begin.astype("datetime64[s]").astype(int)), str(begin)) for begin in found]


def _clock(low: float, high: float, most: int) -> list[float]:
    step = next((step for step in CLOCK_STEPS if high - low < most * step), CLOCK_STEPS[-1])
    return [float(step * k) for k in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]

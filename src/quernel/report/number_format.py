"""Numbers formatted for people."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Format with about four significant digits: 12,346, 1235 (it may be a year), 12.35, 0.1235, 1.2e-05."""
    value = float(value)
    if not math.isfinite(value):
        return "\N{EN DASH}"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 12:
        return f"{value:.3g}"
    text = f"{value:,.{max(0, 3 - size)}f}"
    text = text if abs(value) >= 9999.5 else text.replace(",", "")
    return text.rstrip("0").rstrip(".") if "." in text else text


def short(value: float) -> str:
    """Format the tick of an axis: 2500, 250k, 1.5M."""
    for least, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / unit:.6g}{letter}"
    return f"{value:.6g}"


def percent(share: float, digits: int = 1) -> str:
    """Format a share in per cent, with a no-break space."""
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: 1 column, 1,200 columns."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

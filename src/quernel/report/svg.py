"""Small charts as SVG text. Colours are CSS classes of the page's style sheet, for light and dark themes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.plots.style import truncate
from quernel.report.number_format import short

Array = NDArray[np.floating]
Ticks = Sequence[tuple[float, str]]

# In units of the drawing: about its pixels on a phone. Text is 12 high.
WIDTH, HEIGHT = 440, 290
RIGHT, TOP, BOTTOM = 10, 12, 44
# Room for the label of the upright axis, and for each letter of its longest tick; the height of a line of ticks.
LABEL, LETTER, LINE = 26, 7.5, 13


class Chart:
    """Axes from (low, high) to (low, high), on which lines, bands, bars and dots are put in that order.

    Names of ticks that are long take turns on several lines.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        alt: str,
        x_label: str,
        y_label: str,
        x_ticks: Ticks | None = None,
        tick_lines: int = 1,
    ) -> None:
        self.x, self.y = _wide(x), _wide(y)
        self.alt, self.x_label, self.y_label = alt, x_label, y_label
        self.x_ticks = ticks(*self.x) if x_ticks is None else x_ticks
        self.y_ticks = ticks(*self.y)
        self.left = LABEL + LETTER * max((len(text) for _, text in self.y_ticks), default=0)
        self.tick_lines, self.bottom = tick_lines, HEIGHT - BOTTOM - LINE * (tick_lines - 1)
        self.marks: list[str] = []

    def across(self, x: ArrayLike) -> Array:
        """Where x is in the drawing."""
        low, high = self.x
        return self.left + (np.asarray(x, dtype=float) - low) / (high - low) * (WIDTH - self.left - RIGHT)

    def down(self, y: ArrayLike) -> Array:
        """Where y is in the drawing."""
        low, high = self.y
        return self.bottom - (np.asarray(y, dtype=float) - low) / (high - low) * (self.bottom - TOP)

    def line(self, x: ArrayLike, y: ArrayLike, kind: str) -> None:
        """A line through points."""
        self.marks.append(f'<path class="line {kind}" d="{self._path(x, y)}"/>')

    def band(self, x: ArrayLike, low: ArrayLike, high: ArrayLike, kind: str, opacity: float = 1.0) -> None:
        """The area between two lines."""
        outline = np.r_[np.asarray(x), np.asarray(x)[::-1]], np.r_[np.asarray(low), np.asarray(high)[::-1]]
        self.marks.append(f'<path class="{kind}" fill-opacity="{opacity:.2f}" d="{self._path(*outline)}Z"/>')

    def dots(self, x: ArrayLike, y: ArrayLike, kind: str) -> None:
        """Points; those outside the axes are left out. Each is a tiny line: one of no length is lost in print."""
        x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        inside = (x >= self.x[0]) & (x <= self.x[1]) & (y >= self.y[0]) & (y <= self.y[1])
        places = zip(self.across(x[inside]), self.down(y[inside]), strict=True)
        self.marks.append(f'<path class="dots {kind}" d="{"".join(f"M{a:.1f} {b:.1f}h.1" for a, b in places)}"/>')

    def bars(self, edges: ArrayLike, heights: ArrayLike, kind: str) -> None:
        """Bars from 0 up, between neighbouring edges."""
        edges = np.asarray(edges, dtype=float)
        for left, right, height in zip(edges[:-1], edges[1:], np.asarray(heights), strict=True):
            self.band([left, right], [0, 0], [height, height], kind)

    def whiskers(self, x: ArrayLike, low: ArrayLike, high: ArrayLike, kind: str) -> None:
        """Upright lines."""
        for at, bottom, top in zip(np.asarray(x), np.asarray(low), np.asarray(high), strict=True):
            self.line([at, at], [bottom, top], kind)

    def svg(self) -> str:
        """The chart as text."""
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.alt)}">'
            f"{self._frame()}{''.join(self.marks)}</svg>"
        )

    def _frame(self) -> str:
        left, bottom, right = self.left, self.bottom, WIDTH - RIGHT
        drawn = []
        for value, text in self.y_ticks:
            at = float(self.down(value))
            drawn.append(f'<path class="grid" d="M{left} {at:.1f}H{right}"/>')
            drawn.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}</text>')
        for k, (value, text) in enumerate(self.x_ticks):
            at, line = float(self.across(value)), bottom + 16 + LINE * (k % self.tick_lines)
            drawn.append(f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>')
            # A name that the edge would cut ends there.
            place, anchor = (WIDTH, "end") if at + LETTER * len(text) / 2 > WIDTH else (round(at, 1), "middle")
            drawn.append(f'<text x="{place}" y="{line}" text-anchor="{anchor}">{escape(text)}</text>')
        below, beside = (escape(truncate(text, most)) for text, most in ((self.x_label, 56), (self.y_label, 36)))
        middle, at = (left + right) / 2, (TOP + bottom) / 2
        drawn.append(f'<text class="label" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{below}</text>')
        turned = f"translate(12 {at}) rotate(-90)"
        drawn.append(f'<text class="label" transform="{turned}" text-anchor="middle">{beside}</text>')
        return "".join(drawn)

    def _path(self, x: ArrayLike, y: ArrayLike) -> str:
        low, high = self.y
        reach = high - low  # far beyond the axes nothing is seen, and huge numbers only make trouble
        y = np.clip(np.asarray(y, dtype=float), low - reach, high + reach)
        return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(self.across(x), self.down(y), strict=True))


def ticks(low: float, high: float, most: int = 6, name: Callable[[float], str] = short) -> list[tuple[float, str]]:
    """Return at most `most` round numbers between low and high, with their labels."""
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    values = step * np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1)
    return [(float(value), name(float(value) + 0.0)) for value in values]


def _wide(ends: tuple[float, float]) -> tuple[float, float]:
    low, high = map(float, ends)
    if high > low:
        return low, high
    room = abs(low) / 10 or 1.0
    return low - room, low + room

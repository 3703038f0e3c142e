"""The question put to every system, and the form of an answer.

Whatever a system minimises by its own lights, its answer is judged by

    F = mean pinball loss of y - fitted  +  alpha u'u        (u'u = a'Ka where it works with the kernel itself)

which its fitted values and its penalty determine. Scalings are converted in the adapters, and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.datasets import make_homoscedastic
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.metrics import pinball_loss

Array = NDArray[np.floating]

# Seconds after which a fit is not timed again.
LONG = 10.0


@dataclass(frozen=True)
class Task:
    """One fit: X uniform on [0,1]^3, the homoscedastic simulation, a Gaussian kernel.

    Systems get ready-made random `features`, or, where M is None, work with the kernel itself. `repeats` is how often
    they are timed.
    """

    n: int
    level: float
    alpha: float
    M: int | None = None
    bandwidth: float = 1.0
    fit_intercept: bool = False
    repeats: int = 3

    def __str__(self) -> str:
        features = "exact kernel" if self.M is None else f"M={self.M}"
        width = "" if self.bandwidth == 1 else f", bandwidth {self.bandwidth:g}"
        intercept = ", intercept" if self.fit_intercept else ""
        return f"n={self.n:,}, {features}, level {self.level:g}, alpha {self.alpha:g}{width}{intercept}"

    @cached_property
    def _data(self) -> Any:
        return make_homoscedastic(self.n, random_state=0)

    @property
    def X(self) -> Array:
        """The rows, (n, 3)."""
        return self._data.X

    @property
    def y(self) -> Array:
        """The target, (n,)."""
        return self._data.y

    @cached_property
    def features(self) -> Array:
        """Phi, (n, M)."""
        assert self.M is not None
        return RandomFeatures(Gaussian(self.bandwidth), self.M, random_state=0).fit(self.X).transform(self.X)

    @cached_property
    def design(self) -> Array:
        """Phi, and a column of ones if there is an intercept."""
        return np.column_stack([self.features, np.ones(self.n)]) if self.fit_intercept else self.features

    def prepare(self) -> None:
        """Make the data, so that nobody's time includes it."""
        _ = self.y if self.M is None else self.design

    def gram(self) -> Array:
        """K, (n, n)."""
        return Gaussian(self.bandwidth).gram(self.X, self.X)

    def objective(self, fitted: Array, penalty: float) -> float:
        """F of fitted values (n,) and u'u."""
        return float(pinball_loss(self.y, fitted, self.level)) + self.alpha * penalty

    def null_objective(self) -> float:
        """F0: of the best constant, or of 0 without an intercept."""
        constant = np.quantile(self.y, self.level) if self.fit_intercept else 0.0
        return self.objective(np.full(self.n, constant), 0.0)

    def answer_of(self, seconds: float, coef: Array, intercept: float = 0.0, note: str = "") -> Answer:
        """The answer of a system that found these coefficients of the features."""
        return Answer(seconds, self.features @ coef + intercept, float(coef @ coef), note=note)


@dataclass(frozen=True, eq=False)
class Answer:
    """What a system made of a task.

    The time of a fit, the best of several; fitted values, and u'u, both None for a system with another aim; a relative
    gap, from a system that certifies one; a note; and a version, where the package does not tell.
    """

    seconds: float
    fitted: Array | None = None
    penalty: float | None = None
    gap: float | None = None
    note: str = ""
    version: str = ""


@dataclass(frozen=True)
class System:
    """A name for people, the package it comes from, and a function that fits a task."""

    name: str
    package: str
    fit: Callable[[Task], Answer]


def best(function: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """The shortest of several runs in seconds, and the last answer; what takes long is not run again."""
    runs: list[float] = []
    while len(runs) < repeats and sum(runs) < LONG:
        start = time.perf_counter()
        answer = function()
        runs.append(time.perf_counter() - start)
    return min(runs), answer

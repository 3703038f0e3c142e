"""What was drawn for M features, and how features are made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quernel.kernels import IntegralKernel, Kernel, ShiftInvariantKernel

Array = NDArray[np.floating]
Index = NDArray[np.intp]
# Frequencies (d, M) and phases (M,) of one kernel: how a strategy draws.
Strategy = Callable[[IntegralKernel, np.random.Generator, int, int], tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class Draw:
    """phi_m(x) = weight_m * wave(x, frequency_m, phase_m), the wave being that of the summand `term_m` of the kernel.

    Shapes: frequencies (d, M), phases (M,), weights (M,), terms (M,). The weights are such that E Phi Phi' = K.
    """

    frequencies: Array
    phases: Array
    weights: Array
    terms: Index

    def centered(self, kernel: Kernel, center: Array | None) -> Draw:
        """Waves of x - center; features that are no waves stay as they are."""
        if center is None:
            return self
        is_wave = np.array([isinstance(part, ShiftInvariantKernel) for _, part in kernel.parts])[self.terms]
        shifted = (self.phases - np.asarray(center, dtype=float) @ self.frequencies) % (2 * np.pi)
        return replace(self, phases=np.where(is_wave, shifted, self.phases))

    def take(self, index: Index, factor: Array) -> Draw:
        """Some of the features, their weights multiplied by a factor each."""
        return Draw(self.frequencies[:, index], self.phases[index], self.weights[index] * factor, self.terms[index])

    def waves(self, kernel: Kernel, X: Array) -> Array:
        """The waves, without their weights, shape (n, M)."""
        if len(kernel.parts) == 1:
            return _integral(kernel.parts[0][1]).wave(X, self.frequencies, self.phases)
        Phi = np.empty((len(X), len(self.phases)))
        for term, (_, part) in enumerate(kernel.parts):
            mine = self.terms == term
            Phi[:, mine] = _integral(part).wave(X, self.frequencies[:, mine], self.phases[mine])
        return Phi


def draw(kernel: Kernel, strategy: Strategy, rng: np.random.Generator, n_components: int, n_columns: int) -> Draw:
    """M features of the kernel, those of a sum shared out in proportion to its coefficients.

    The share of each summand is fixed, not drawn: its features are weighted by sqrt(c_k / M_k), so that every summand
    is met on average by its own, and nothing is lost to a random number of them.
    """
    coefficients = np.array([coefficient for coefficient, _ in kernel.parts])
    counts = shares(coefficients, n_components)
    drawn = [
        strategy(_integral(part), rng, int(count), n_columns)
        for count, (_, part) in zip(counts, kernel.parts, strict=True)
    ]
    return Draw(
        np.ascontiguousarray(np.hstack([frequencies for frequencies, _ in drawn])),
        np.concatenate([phases for _, phases in drawn]),
        np.repeat(np.sqrt(coefficients / counts), counts),
        np.repeat(np.arange(len(counts)), counts),
    )


def shares(coefficients: Array, n_components: int) -> Index:
    """Whole numbers that sum to M, in proportion to the coefficients but at least one each."""
    n = len(coefficients)
    if n_components < n:
        raise ValueError(
            f"A sum of {n} kernels needs at least one random feature for each; got n_components={n_components}."
        )
    wanted = (n_components - n) * coefficients / coefficients.sum()
    counts = np.floor(wanted).astype(np.intp)
    most_wanting = np.argsort(counts - wanted, kind="stable")[: n_components - n - counts.sum()]
    counts[most_wanting] += 1
    return counts + 1


def _integral(kernel: Kernel) -> IntegralKernel:
    assert isinstance(kernel, IntegralKernel)
    return kernel


def in_pairs(frequencies: Array, phases: Array, n_components: int) -> tuple[Array, Array]:
    """Every frequency twice, with phases a quarter turn apart: cosine and sine, whose products hold no phase at all."""
    phases = np.column_stack([phases, phases - np.pi / 2]).ravel()
    return np.repeat(frequencies, 2, axis=1)[:, :n_components], phases[:n_components]

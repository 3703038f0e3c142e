"""A kernel of the user's own, given by a sampler of its spectral measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from quernel.kernels.base import Array
from quernel.kernels.fourier import ShiftInvariantKernel


@dataclass(frozen=True, eq=False)
class SpectralKernel(ShiftInvariantKernel):
    """K(x, z) = E cos(w'(x - z) / bandwidth), with w from a sampler that the user gives.

    Parameters
    ----------
    bandwidth : float, one float per column, or None
        As in every shift-invariant kernel.
    sampler : callable
        ``sampler(rng, n_components, n_columns)`` returns independent draws of w, shape (n_columns, n_components), from
        a law that is symmetric about 0. Use the generator it is given, and a function that can be pickled.
    function : callable or None
        ``function(X, Z)`` returns K(x, z) at bandwidth 1 for all pairs of rows, if it is known: needed for
        ``n_components="exact"``.

    A sampler gives "uniform" and "leverage" sampling. For the other kinds, write a subclass of
    `quernel.kernels.ShiftInvariantKernel` that makes frequencies of normal numbers, as the library's own kernels do.

    Examples
    --------
    >>> import numpy as np
    >>> def box(rng, n_components, n_columns):
    ...     return rng.uniform(-1, 1, (n_columns, n_components))
    >>> sinc = SpectralKernel(2.0, box, lambda X, Z: np.sinc((X[:, None] - Z[None]) / np.pi).prod(axis=2))
    >>> sinc.gram(np.zeros((1, 1)), np.array([[1.0]])).round(4)
    array([[0.9589]])
    """

    name: ClassVar[str] = "spectral"
    refused_samplings: ClassVar[dict[str, str]] = {
        sampling: f"sampling={sampling!r} must know how frequencies are made of normal or uniform numbers; a "
        "SpectralKernel knows a sampler only. Use 'uniform' or 'leverage', or write a subclass of "
        "quernel.kernels.ShiftInvariantKernel."
        for sampling in ("orthogonal", "qmc")
    }
    sampler: Callable[[np.random.Generator, int, int], Array] | None = None
    function: Callable[[Array, Array], Array] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, given in (("sampler", self.sampler), ("function", self.function)):
            if not callable(given) and not (given is None and name == "function"):
                raise ValueError(f"{name} must be a function; got {given!r}.")

    def __hash__(self) -> int:
        return hash((type(self), self.sampler, self.function))

    def gram(self, X: Array, Z: Array) -> Array:
        """The user's function at bandwidth 1."""
        self.check_diagonal()
        assert self.function is not None
        scale = self.scale(X.shape[1])
        return np.asarray(self.function(np.asarray(X, dtype=float) / scale, np.asarray(Z, dtype=float) / scale))

    def check_diagonal(self) -> None:
        """Complain if the function is not known."""
        if self.function is None:
            raise ValueError(
                "This SpectralKernel knows its sampler only, so it has random features but no Gram matrix. Give it "
                "function=..., or use a number of random features."
            )

    def frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        """The user's draws, divided by the bandwidth of each column."""
        assert self.sampler is not None
        drawn = np.asarray(self.sampler(rng, n_components, n_columns), dtype=float)
        if drawn.shape != (n_columns, n_components) or not np.all(np.isfinite(drawn)):
            raise ValueError(
                f"The sampler of a SpectralKernel must return finite numbers of shape (n_columns, n_components) = "
                f"({n_columns}, {n_components}); it returned shape {drawn.shape}."
            )
        return drawn / self.scale(n_columns)[:, None]

    def _standard_frequencies(self, normal: Array, mixing: Array) -> Array:
        raise NotImplementedError

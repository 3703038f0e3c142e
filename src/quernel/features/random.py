"""Random Fourier features: sqrt(2 / M) cos(w'x + b)."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from quernel._threads import right_sized, spread
from quernel.features.blocks import blocks, strips
from quernel.kernels import KERNELS, Kernel, ShiftInvariantKernel, resolve

SAMPLINGS = ("uniform",)
# Entries of Phi from which loading the compiled cosine pays: below, numpy's takes less time than importing numba.
COMPILE_FROM = 3_000_000
# Columns of X up to which the compiled loop multiplies by the frequencies itself.
FEW_COLUMNS = 8


class RandomFeatures(TransformerMixin, BaseEstimator):
    """The paper's features  phi(x) = sqrt(2 / M) (cos(w_1'x + b_1), ..., cos(w_M'x + b_M)).

    The frequencies w come from the kernel's spectral measure and the phases b are uniform on [0, 2 pi), so that
    E phi(x)'phi(z) = K(x, z). Both are drawn once, by `fit`, and read-only from then on.

    Parameters
    ----------
    kernel : str or kernel object, default="gaussian"
        A shift-invariant kernel. Its bandwidth is 1 unless the object says otherwise.
    n_components : int, default=100
        The number of features, the paper's M.
    sampling : {"uniform"}, default="uniform"
        "uniform" draws independent frequencies from the spectral measure.
    center : array of shape (n_columns,) or None
        Where phases are counted from, None being 0: features of x - center, so that adding a constant to a column of X
        and to its center changes nothing.
    random_state : int, numpy Generator, numpy RandomState or None
        The source of the draws; an integer makes them repeatable.

    Attributes
    ----------
    frequencies_ : ndarray of shape (n_columns, n_components)
    phases_ : ndarray of shape (n_components,)
    n_components_ : int
    """

    def __init__(
        self,
        kernel: str | Kernel = "gaussian",
        n_components: int = 100,
        *,
        sampling: str = "uniform",
        center: Any = None,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.n_components = n_components
        self.sampling = sampling
        self.center = center
        self.random_state = random_state

    def fit(self, X: NDArray[np.floating], y: Any = None) -> Self:  # noqa: ARG002 (scikit-learn's signature)
        """Draw frequencies and phases for the columns of X; the values of X are not looked at."""
        kernel = resolve(self.kernel)
        if not isinstance(kernel, ShiftInvariantKernel):
            able = ", ".join(repr(k) for k, v in KERNELS.items() if issubclass(v, ShiftInvariantKernel))
            raise ValueError(
                f"The kernel {self.kernel!r} has no spectral measure to draw random features from. "
                f'Use one of {able}, or the kernel itself with n_components="exact".'
            )
        if self.sampling not in SAMPLINGS:
            known = ", ".join(repr(name) for name in SAMPLINGS)
            raise ValueError(f"Unknown sampling {self.sampling!r}. Known: {known}.")
        rng = as_generator(self.random_state)
        frequencies = np.ascontiguousarray(kernel.frequencies(rng, self.n_components, np.shape(X)[1]))
        phases = rng.uniform(0, 2 * np.pi, self.n_components)
        if self.center is not None:
            phases = (phases - np.asarray(self.center, dtype=float) @ frequencies) % (2 * np.pi)
        for drawn in (frequencies, phases):
            drawn.flags.writeable = False
        self.frequencies_, self.phases_ = frequencies, phases
        self.n_components_ = self.n_components
        return self

    def transform(self, X: NDArray[np.floating], order: NDArray[np.intp] | None = None) -> NDArray[np.floating]:
        """Phi, shape (n, M), in the floating type of X; of the rows X[order], if an order is given."""
        X = np.asarray(X)
        dtype = X.dtype if X.dtype in (np.float32, np.float64) else np.dtype(float)
        Phi = np.empty((len(X) if order is None else len(order), self.n_components_), dtype=dtype)
        self.prepare(len(Phi))

        def lift(block: slice) -> None:
            self._lift(X[block] if order is None else X[order[block]], Phi[block])

        with right_sized(*Phi.shape) as threads:
            spread(lift, blocks(*Phi.shape), threads)
        return Phi

    def prepare(self, n_rows: int) -> None:
        """Load the compiled cosine if it pays for so many rows, in however many calls they come."""
        if n_rows * self.n_components_ >= COMPILE_FROM:
            _load_compiled()

    def _lift(self, X: NDArray[np.floating], out: NDArray[np.floating]) -> None:
        """Phi of these rows, written into `out`; computed in double precision whatever the type of either."""
        scale = np.sqrt(2 / self.n_components_)
        if _compiled is not None and X.shape[1] <= FEW_COLUMNS:
            _compiled.scaled_cosine_of_few(
                np.ascontiguousarray(X, dtype=float), self.frequencies_, self.phases_, scale, out
            )
            return
        for strip in strips(*out.shape):
            angle = np.asarray(X[strip], dtype=float) @ self.frequencies_
            if _compiled is not None:
                _compiled.scaled_cosine(angle, self.phases_, scale, out[strip])
            else:
                angle += self.phases_
                np.multiply(np.cos(angle, out=angle), scale, out=out[strip], casting="same_kind")


_compiled: ModuleType | None = None


def _load_compiled() -> None:
    global _compiled
    if _compiled is None:
        try:
            from quernel.features import cosine
        except RuntimeError:  # numba finds no place to keep compiled code: numpy's cosine does the same, slower
            return
        _compiled = cosine


def as_generator(random_state: Any) -> np.random.Generator:
    """A Generator from a seed, a Generator, or scikit-learn's older RandomState."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31))
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"random_state must be a non-negative integer, a Generator, a RandomState or None; got {random_state!r}."
        ) from error

"""KernelRegressor: kernel regression under any convex loss of the residual."""

from __future__ import annotations

from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from quernel.estimators.base import KernelEstimator, WarmStart, check_checkpoint
from quernel.estimators.inputs import check_loss
from quernel.estimators.prediction import blockwise, check_rows, check_scored
from quernel.estimators.solve import TimeBudget
from quernel.features import RandomFeatures
from quernel.kernels import Kernel
from quernel.kernels.base import Seed
from quernel.losses import Loss
from quernel.tuning.alpha import scaled_loss

Array = NDArray[np.floating]


class KernelRegressor(RegressorMixin, KernelEstimator):
    """Kernel regression with random features under a convex loss of your choice.

    It minimises

        mean_i loss(y_i - phi(x_i)'u - b) + alpha u'u,

    where phi are random features of the kernel (or, with ``n_components="exact"``, the kernel itself). The solution is
    certified by its relative duality gap, `duality_gap_`; a fit that does not reach `tol` warns.

    Parameters
    ----------
    loss : str or object of `quernel.losses`, default="huber"
        "huber", "epsilon_insensitive" (support vector regression), "absolute", "pinball" (at level 1/2),
        "smoothed_pinball", "squared" (kernel ridge regression), "expectile" (at level 1/2), "logcosh",
        "generalized_pareto" (log scale of exceedances whose logarithms are y). For a loss given by name, its length,
        such as Huber's threshold, is set relative to a robust scale of y. An object has its own, in units of y:
        ``Huber(1.5)``, ``EpsilonInsensitive(0.01)``, ``Expectile(0.9)``.
    kernel, bandwidth, n_components, sampling, fit_intercept, solver, tol, max_iter, max_seconds, max_memory, dtype, \
    warm_start, random_state, verbose :
        As in `KernelQuantileRegressor`. ``solver="admm"`` supports these losses, too.
    alpha : "auto" or float, default="auto"
        Weight of the ridge penalty. "auto" is a constant in units of the loss at the robust scale of y, so that
        rescaling y rescales the predictions of a default fit. It is halved from 2,000 distinct rows on, and again for
        every factor of four in their number. From 30 to 2,000 distinct rows it is chosen by held-out loss, near that
        constant; print `alpha_choice_`.
    alpha_scale : {"absolute", "relative"}, default="absolute"
        Unit of a number given as alpha. "relative" multiplies it by the mean of loss(s) and loss(-s), times 2 / s^2,
        for a robust scale s of y, so that it means the same whatever the unit of y.

    Attributes
    ----------
    loss_ : object of `quernel.losses`
    coef_ : ndarray of shape (M, 1)
    intercept_, duality_gap_, objective_ : ndarrays of shape (1,)
    alpha_, alpha_choice_, bandwidth_, n_components_, n_components_choice_, n_iter_, feature_map_ : as in
        `KernelQuantileRegressor`
    encoder_ : TableEncoder
        The encoding of X, if that had columns other than finite numbers.
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> import numpy as np
    >>> from quernel import KernelRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (300, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_t(2, 300)
    >>> model = KernelRegressor("huber", random_state=0).fit(X, y)
    >>> bool(np.abs(model.predict(X) - np.sin(X[:, 0])).mean() < 0.05)
    True
    >>> bool(model.duality_gap_[0] <= 1e-6)
    True
    """

    def __init__(
        self,
        loss: str | Loss = "huber",
        *,
        kernel: str | Kernel = "auto",
        bandwidth: str | float | ArrayLike = "auto",
        n_components: int | str = "auto",
        sampling: str | RandomFeatures = "auto",
        alpha: float | str = "auto",
        alpha_scale: str = "absolute",
        fit_intercept: bool = True,
        solver: str = "newton",
        tol: float = 1e-6,
        max_iter: int = 1000,
        max_seconds: float | None = None,
        max_memory: int | None = None,
        dtype: str = "float64",
        warm_start: bool = False,
        random_state: Seed = None,
        verbose: int = 0,
    ) -> None:
        self.loss = loss
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.n_components = n_components
        self.sampling = sampling
        self.alpha = alpha
        self.alpha_scale = alpha_scale
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.max_seconds = max_seconds
        self.max_memory = max_memory
        self.dtype = dtype
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: ArrayLike | None = None,
        *,
        checkpoint: str | PathLike[str] | None = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d); text, dates and missing values are encoded (user guide on tables)
            Or an object of `quernel.data` with its own target, without y and sample_weight; or a Dask collection.
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,) or None
            A weight of 2 is equivalent to repeating the row, a weight of 0 to leaving it out.
        checkpoint : as in `KernelQuantileRegressor`

        Returns
        -------
        self : the fitted estimator
        """
        kernel = self._check_parameters()
        check_loss(self.loss, margin=False)
        check_checkpoint(self, checkpoint)
        budget = TimeBudget(self.max_seconds)
        data = self._read(kernel, X, y, sample_weight)
        loss = scaled_loss(self.loss, data.summary.target_scale) if isinstance(self.loss, str) else self.loss
        start = WarmStart.from_model(self, data.summary, loss, checkpoint)
        with self._reporting(data, loss):
            plan = self._plan(data, kernel, loss, start, budget)
            solution = self._solve(plan, data, loss, start, budget)
        return self._store(data, plan, solution, start, loss_=loss)

    def _output_names(self) -> list[str]:
        return [f"the {type(self.loss_).__name__} loss"]

    @blockwise
    def predict(self, X: Any) -> Array:
        """Predict phi(x)'u + b, shape (n,). X may also be an object of `quernel.data` or a Dask collection."""
        check_is_fitted(self)
        return self._predict_raw(check_rows(self, X))[:, 0]

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """D^2: 1 - (loss of the model) / (loss of the best constant), which is R^2 for the squared loss."""
        check_is_fitted(self)
        X, y, weight = check_scored(self, X, y, sample_weight)
        return self.loss_.d2_score(y, self._predict_raw(X), weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # As in KernelQuantileRegressor: only alpha="auto" adapts to the data.
        tags.regressor_tags.poor_score = self.alpha != "auto"
        return tags

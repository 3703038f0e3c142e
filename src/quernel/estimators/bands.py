"""Confidence bands and tests of `KernelQuantileRegressor`: the methods that need ``inference=True``."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_share
from quernel.estimators.inference import (
    OPTIONS,
    CurveInference,
    CurveTest,
    InferenceOptions,
    TrainingFeatures,
    compare_with_zero,
    confidence_bounds,
    estimate_inference,
)
from quernel.estimators.inputs import FitData, is_dask, source_of
from quernel.estimators.levels import rearrange
from quernel.estimators.prediction import as_frame_like, check_rows, level_names
from quernel.estimators.solve import Solution
from quernel.estimators.warnings import warn_if_extrapolating
from quernel.features import LandmarkPredictor, Nystroem
from quernel.tuning.plan import FitPlan

Array = NDArray[np.floating]


class InferenceMixin:
    """Bands and tests from `inference_`, the covariance of the curves."""

    inference: bool
    fit_intercept: bool
    noncrossing: str | None
    quantiles_: Array
    feature_map_: Any
    inference_: CurveInference | None
    stopped_by_: str | None
    _single: bool

    def predict_band(self, X: Any, level: float = 0.95, *, simultaneous: bool = True, as_frame: bool = False) -> Any:
        """Confidence band for the true quantile curves at the rows of X; the model needs ``inference=True``.

        A band says where the quantile function may be, a prediction interval where y may be. It is centred on a curve
        whose shrinkage by the penalty is corrected, and which is rougher than the prediction, without `level_shift_`;
        The user guide on bands has its coverage in simulations.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d), in memory
        level : float, default=0.95
            Confidence level.
        simultaneous : bool, default=True
            Whether a curve is inside at all rows of X at once with this probability, by the largest deviation in draws
            of the curve, or at each of them. Levels are treated one by one.
        as_frame : bool, default=False
            Whether to return a data frame like X, with the columns ``q0.5_lower``, ``q0.5_upper``, ...

        Returns
        -------
        ndarray of shape (n, 2) for one level given as a float, (n, q, 2) for a sequence
            Lower and upper ends. Unless `noncrossing` is None, lower ends are sorted by level, and so are upper ends.

        Examples
        --------
        >>> from quernel import KernelQuantileRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 10, (400, 1))
        >>> y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(400)
        >>> model = KernelQuantileRegressor(bandwidth="auto", inference=True, random_state=0).fit(X, y)
        >>> lower, upper = model.predict_band(X).T
        >>> bool(np.all((lower < np.sin(X[:, 0])) & (np.sin(X[:, 0]) < upper)))
        True
        """
        inference = self._fitted_inference("predict_band")
        check_share("level", level)
        bounds = confidence_bounds(
            inference, self.feature_map_.transform(self._rows_in_memory(X)), level, simultaneous=simultaneous
        )
        if self.noncrossing is not None:
            bounds = np.stack([rearrange(bounds[..., side], self.quantiles_) for side in (0, 1)], axis=2)
        if as_frame:
            names = [f"{name}_{side}" for name in level_names(self.quantiles_) for side in ("lower", "upper")]
            return as_frame_like(X, bounds.reshape(len(bounds), -1), names)
        return bounds[:, 0] if self._single else bounds

    def test_column(self, X: Any, column: int | str) -> CurveTest:
        """Test, level by level, whether the quantile depends on a column; the model needs ``inference=True``.

        The hypothesis is that the curve at each row of X equals its mean over the values that the column has in X, the
        other columns held fixed. Large differences at some rows, and small ones at many, speak against it.

        Parameters
        ----------
        X : array-like or data frame of shape (n, d), in memory
            Rows at which to look, such as some of the training rows. If there are more than 60, so many of them,
            evenly spaced, are used.
        column : int or str
            Position of the column or, if the model knows names, its name.
        """
        inference = self._fitted_inference("test_column")
        rows = self._rows_in_memory(X)
        rows = rows[:: -(-len(rows) // OPTIONS.column_rows)]
        places = _encoded_places(self, column)
        # Every row with the value of the column in every other one: (m, m, d).
        crossed = np.repeat(rows[:, None, :], len(rows), axis=1)
        crossed[:, :, places] = rows[None, :, places]
        Phi = self.feature_map_.transform(crossed.reshape(-1, rows.shape[1])).reshape(len(rows), len(rows), -1)
        contrast = self.feature_map_.transform(rows) - Phi.mean(axis=1)
        levels = range(len(self.quantiles_))
        # The intercept is the same on both sides.
        deviations = [contrast @ inference.factor[k, :-1] for k in levels]
        return compare_with_zero(
            contrast @ inference.coef, deviations, inference.degrees, self.quantiles_, one_sign=False
        )

    def test_equal(self, other: InferenceMixin, X: Any) -> CurveTest:
        """Test, level by level, whether two models of independent rows have the same true curves at the rows of X.

        Such as those of two groups, or of two years. Both models need ``inference=True`` and the same levels.
        The bias-corrected curves are compared: large differences at some rows, small ones at many, and their mean speak
        against it.
        """
        if not isinstance(other, InferenceMixin):
            raise ValueError(f"test_equal compares with a KernelQuantileRegressor; got {type(other).__name__}.")
        ours, theirs = (model._fitted_inference("test_equal") for model in (self, other))
        if not np.array_equal(self.quantiles_, other.quantiles_):
            raise ValueError(
                f"Curves are compared level by level, but the levels are {self.quantiles_.tolist()} and "
                f"{other.quantiles_.tolist()}. Fit both models with the same ones."
            )
        Phi, Psi = (
            self.feature_map_.transform(self._rows_in_memory(X)),
            other.feature_map_.transform(other._rows_in_memory(X)),
        )
        deviations = [
            np.hstack([ours.deviations(Phi, k), theirs.deviations(Psi, k)]) for k in range(len(self.quantiles_))
        ]
        degrees = np.minimum(ours.degrees, theirs.degrees)
        return compare_with_zero(
            ours.centre(Phi) - theirs.centre(Psi), deviations, degrees, self.quantiles_, one_sign=True
        )

    def _check_inference(self, data: FitData) -> None:
        """Raise, before any work, if the covariance of the curves cannot be had for these data."""
        if not data.summary.in_memory:
            raise ValueError(
                "inference=True needs rows in memory, but these are out of core. Fit with inference=True to a sample "
                "of them, or raise max_memory."
            )
        masses = data.summary.point_masses
        if len(masses):
            raise ValueError(
                f"inference=True needs a continuous target, but at least 1 % of the rows share the value "
                f"{masses[0] + data.summary.centre:g}: a quantile there has no density. Leave inference out."
            )

    def _estimate_inference(
        self, levels: Array, data: FitData, plan: FitPlan, solution: Solution, options: InferenceOptions = OPTIONS
    ) -> CurveInference | None:
        """Covariance of the curves, or None if the solver was stopped.

        `options` are others than the default in simulations only.
        """
        if solution.stopped_by is not None:
            return None
        rows, centre, result = data.summary.source, data.summary.centre, solution.result
        fit = estimate_inference(
            TrainingFeatures(solution.feature_map, rows.X, rows.share()),
            rows.y,
            replace(result, intercept=result.intercept - centre),
            levels,
            plan.alpha,
            fit_intercept=bool(self.fit_intercept),
            options=options,
        )
        return replace(fit, intercept=fit.intercept + centre)

    def _fitted_inference(self, method: str) -> CurveInference:
        """The covariance of the curves; raise if there is none."""
        check_is_fitted(self)
        fit = getattr(self, "inference_", None)  # files of older versions have no such attribute
        if fit is not None:
            return fit
        if self.inference and self.stopped_by_ is not None:
            raise ValueError(f"{method} needs a fit to the end, but this one was stopped by: {self.stopped_by_}.")
        raise ValueError(f"{method} needs a model with inference=True. Set it, and fit again.")

    def _rows_in_memory(self, X: Any) -> Array:
        """New rows, encoded, (n, d)."""
        if is_dask(X) or source_of(X, None, None) is not None:
            raise ValueError(
                f"Bands and tests depend on all rows at once, and take arrays or data frames; got {type(X).__name__}. "
                "Give some rows in memory, such as a grid."
            )
        rows = check_rows(self, X)
        if not len(rows):
            raise ValueError("Bands and tests need at least one row; X has none.")
        warn_if_extrapolating(self, rows)
        return rows

    def _export_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """State as written to a model file: the covariance refers to the same features as the coefficients."""
        features, fit = state.get("feature_map_"), state.get("inference_")
        state = super()._export_state(state)  # type: ignore[misc]
        if fit is None or not isinstance(features, Nystroem):
            return state
        coef = LandmarkPredictor.from_nystroem(features, fit.coef)[1]
        factor = [LandmarkPredictor.from_nystroem(features, one[:-1])[1] for one in fit.factor]
        whole = np.concatenate([np.stack(factor), fit.factor[:, -1:]], axis=1)
        return state | {"inference_": CurveInference(coef, fit.intercept, whole, fit.degrees)}


def _encoded_places(model: BaseEstimator, column: int | str) -> NDArray[np.intp]:
    """Positions among the encoded columns of a column that is given by name or position."""
    encoder = getattr(model, "encoder_", None)
    if encoder is None:
        names = [str(name) for name in getattr(model, "feature_names_in_", range(model.n_features_in_))]
        widths = [1] * len(names)
    else:
        names, widths = encoder.inputs, [len(one.names) for one in encoder.columns_]
    if isinstance(column, str) and column in names:
        place = names.index(column)
    elif isinstance(column, Integral) and not isinstance(column, bool) and 0 <= column < len(names):
        place = int(column)
    else:
        raise ValueError(f"column must be one of {', '.join(names)}, or a position below {len(names)}; got {column!r}.")
    return np.arange(sum(widths[:place]), sum(widths[: place + 1]))

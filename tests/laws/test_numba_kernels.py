"""Screening passes: columns screened together give what each gives alone."""

import numpy as np
import pytest

from quernel.losses import Pinball
from quernel.objective.numba_kernels import screen_rows, screen_rows_together


def screened_by(kernel, levels, apart, band, dtype=float):
    """Outputs of a screening pass: residual, dual, active; sums of screened and of active rows; constant and loss."""
    rng, n, M, q = np.random.default_rng(0), 500, 40, len(levels)
    loss = Pinball(levels)
    knots, slopes = loss.segments
    features = rng.standard_normal((n, M)).astype(dtype)
    coef = np.outer(np.ones(q), rng.standard_normal(M)) + apart * rng.standard_normal((q, M))
    y = features @ coef[0] + rng.standard_normal(n)
    share = rng.uniform(size=n) * (rng.uniform(size=n) > 0.1)
    residual, dual = np.empty((2, q, n))
    active, phi_t_duals, mean_duals, sums = (
        np.zeros((q, n), dtype=bool),
        np.zeros((2, q, M)),
        np.zeros((2, q)),
        np.zeros((2, q)),
    )
    offset = np.broadcast_to(y, (q, n))
    frame = (offset, np.broadcast_to(1.0, (q, n))) if kernel is screen_rows else (offset,)
    lines = knots, slopes, loss.conjugate(slopes.T).T.copy()
    fit = coef, np.sort(rng.standard_normal(q)), *lines
    sums_of_rows = _paired(phi_t_duals, mean_duals)
    kernel(features, *frame, share, *fit, np.full(q, band), residual, dual, active, *sums_of_rows, *sums)
    return residual, dual, active, phi_t_duals, mean_duals, sums


def _paired(phi_t_duals, mean_duals):
    """In the order of the arguments: sums of screened rows and of active ones in turn."""
    return phi_t_duals[0], phi_t_duals[1], mean_duals[0], mean_duals[1]


@pytest.mark.parametrize("dtype", [float, np.float32])
@pytest.mark.parametrize("band", [0.0, 0.3, 10.0])
@pytest.mark.parametrize("apart", [0.0, 1.0], ids=["in order", "crossing"])
@pytest.mark.parametrize("levels", [[0.1, 0.5, 0.9], [0.9, 0.1, 0.5, 0.2], [0.5, 0.5, 0.5]])
def test_columns_together_are_columns_alone(levels, apart, band, dtype):
    alone, together = (
        screened_by(kernel, levels, apart, band, dtype) for kernel in (screen_rows, screen_rows_together)
    )
    for one, other in zip(alone[1:3], together[1:3], strict=True):
        np.testing.assert_array_equal(other, one)
    for one, other in zip((alone[0], *alone[3:]), (together[0], *together[3:]), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-11, atol=1e-11)
    if band == 0.3:
        assert 0 < alone[2].mean() < 1
        assert np.abs(alone[3]).max(axis=(1, 2)).min() > 1

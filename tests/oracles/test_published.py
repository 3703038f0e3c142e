"""Coefficients that others have published: as alpha goes to 0, the linear kernel is linear quantile regression."""

from pathlib import Path

import numpy as np
import pytest

from support.models import plain_regressor

ENGEL = Path(__file__).parents[3] / "shared" / "data" / "engel.csv.gz"

# Food expenditure given income, intercept and slope: "Quantile regression" among the examples of statsmodels' manual,
# by iteratively reweighted least squares, which stops at four digits or so after the decimal point of the intercept.
STATSMODELS = {
    0.05: (124.880099, 0.343361), 0.15: (111.693660, 0.423708), 0.25: (95.483539, 0.474103),
    0.35: (105.841294, 0.488901), 0.45: (81.083647, 0.552428), 0.55: (89.661370, 0.565601),
    0.65: (74.033434, 0.604576), 0.75: (62.396584, 0.644014), 0.85: (52.272216, 0.677603),
    0.95: (64.103964, 0.709069),
}  # fmt: skip
# The vignette of R's quantreg (0.05, 0.25, 0.5, 0.75, 0.95), and the tests of R's package parameters (deciles).
QUANTREG = {
    0.05: (124.88004, 0.34336), 0.25: (95.48354, 0.47410), 0.75: (62.39659, 0.64401), 0.95: (64.10396, 0.70907),
    0.1: (110.14157, 0.40177), 0.2: (102.31388, 0.4469), 0.3: (99.11058, 0.48124), 0.4: (101.95988, 0.5099),
    0.5: (81.48225, 0.56018), 0.6: (79.70227, 0.58585), 0.7: (79.28362, 0.60885), 0.8: (58.00666, 0.65951),
    0.9: (67.35087, 0.6863),
}  # fmt: skip

# Brownlee (1960), Statistical Theory and Methodology, p. 454: air flow, water temperature, acid, loss of ammonia.
STACKLOSS = np.array([
    (80, 27, 89, 42), (80, 27, 88, 37), (75, 25, 90, 37), (62, 24, 87, 28), (62, 22, 87, 18), (62, 23, 87, 18),
    (62, 24, 93, 19), (62, 24, 93, 20), (58, 23, 87, 15), (58, 18, 80, 14), (58, 18, 89, 14), (58, 17, 88, 13),
    (58, 18, 82, 11), (58, 19, 93, 12), (50, 18, 89, 8), (50, 18, 86, 7), (50, 19, 72, 8), (50, 19, 79, 8),
    (50, 20, 80, 9), (56, 20, 82, 15), (70, 20, 91, 15),
], dtype=float)  # fmt: skip
# rq(stack.loss ~ ..., method="br"), as R's quantreg and the tests of R's packages parameters and insight print it.
VERTICES = {
    (3, 0.25): (-36, 0.5, 1, 0),
    (3, 0.5): (-39.68986, 0.83188, 0.57391, -0.06087),
    (2, 0.25): (-36, 0.5, 1),
    (2, 0.5): (-44.08065, 0.79032, 0.66129),
    (2, 0.75): (-54.18966, 0.87069, 0.98276),
}


def coefficients(X, y, levels, alpha):
    """Intercepts and slopes at the levels, shape (1 + p, q)."""
    model = plain_regressor(levels, kernel="linear", alpha=alpha, noncrossing=None, tol=1e-9).fit(X, y)
    return np.vstack([model.intercept_, model.coef_])


@pytest.mark.skipif(not ENGEL.exists(), reason="needs Engel's data beside the repository")
@pytest.mark.parametrize(
    ("published", "atol"), [(STATSMODELS, 1e-4), (QUANTREG, 6e-6)], ids=["statsmodels", "quantreg"]
)
def test_engel_at_all_published_levels(published, atol):
    income, food = np.loadtxt(ENGEL, delimiter=",", skiprows=1, unpack=True)
    levels, expected = sorted(published), np.array([published[level] for level in sorted(published)]).T
    for alpha in (1e-6, 1e-12):
        np.testing.assert_allclose(coefficients(income[:, None], food, levels, alpha), expected, rtol=0, atol=atol)
    assert np.abs(coefficients(income[:, None], food, levels, 100.0) - expected).max() > 1  # the ridge does shrink


@pytest.mark.parametrize(("n_columns", "level"), VERTICES)
def test_vertices_of_the_stack_loss_data(n_columns, level):
    X, y = STACKLOSS[:, :n_columns], STACKLOSS[:, 3]
    expected = VERTICES[n_columns, level]
    found = coefficients(X, y, [level], 1e-10)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=6e-6)
    on_the_plane = np.sum(np.abs(y - found[0] - X @ found[1:]) < 1e-6)
    assert on_the_plane >= 1 + n_columns  # a vertex goes through as many points as it has coefficients
    if level == 0.25:
        assert on_the_plane == 8  # "8 of the 21 points lie exactly on this plane", says the manual of quantreg
    assert np.abs(coefficients(X, y, [level], 1.0)[:, 0] - expected).max() > 0.1

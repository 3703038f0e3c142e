"""F(u, b) of stored numbers, in 60 decimal digits: what a certificate must hold for."""

from mpmath import mp, mpf

DIGITS = 60


def exact_objective(name, X, y, alpha, coef, intercept, weight=None, *, level=0.3, length=0.7):
    """F by its definition; the floating point numbers are taken as they are, and nothing is rounded to 53 bits."""
    with mp.workdps(DIGITS):
        weights = [mpf(float(w)) for w in weight] if weight is not None else [mpf(1)] * len(y)
        u, b, tau, size = [mpf(float(c)) for c in coef], mpf(intercept), mpf(float(level)), mpf(float(length))
        total = mpf(0)
        for row, target, w in zip(X, y, weights, strict=True):
            f = b + sum(mpf(float(x)) * c for x, c in zip(row, u, strict=True))
            r = 1 - mpf(float(target)) * f if name in MARGIN else mpf(float(target)) - f
            total += w * _loss(name, r, tau, size)
        return total / sum(weights) + mpf(float(alpha)) * sum(c * c for c in u)


MARGIN = ("hinge", "squared_hinge", "smoothed_hinge", "logistic")


def _loss(name, r, tau, size):
    """loss(r) of an mpf."""
    match name:
        case "pinball":
            return max(tau * r, (tau - 1) * r)
        case "absolute":
            return abs(r)
        case "huber":
            return r * r / 2 if abs(r) <= size else size * abs(r) - size * size / 2
        case "epsilon_insensitive":
            return max(abs(r) - size, mpf(0))
        case "smoothed_pinball":
            v = min(max(r / size, tau - 1), tau)
            return v * r - size * v * v / 2
        case "squared":
            return r * r
        case "expectile":
            return (tau if r >= 0 else 1 - tau) * r * r
        case "logcosh":
            return size * size * mp.log(mp.cosh(r / size))
        case "hinge":
            return max(r, mpf(0))
        case "squared_hinge":
            return max(r, mpf(0)) ** 2
        case "smoothed_hinge":
            return mpf(0) if r < 0 else r * r / (2 * size) if r < size else r - size / 2
        case "logistic":
            return mp.log1p(mp.exp(r - 1))
    raise KeyError(name)

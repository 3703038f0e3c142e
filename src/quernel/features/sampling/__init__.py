"""Sampling strategies for random features: all are unbiased, E phi(x)'phi(z) = K(x, z), but their variances differ.

- "uniform"     independent draws from the kernel's spectral measure (Rahimi and Recht, 2007);
- "orthogonal"  frequencies that are orthogonal within blocks (Yu et al., 2016);
- "qmc"         frequencies from a low-discrepancy sequence, quasi-Monte Carlo (Avron et al., 2016);
- "leverage"    a subset of a larger pool, sampled by ridge leverage scores on the data.
"""

from quernel.features.sampling.draw import (
    Draw,
    Strategy,
    draw_features,
    draw_orthogonal,
    draw_qmc,
    draw_uniform,
)
from quernel.features.sampling.leverage import SCORES, draw_by_leverage

__all__ = ["SAMPLINGS", "SCORES", "STRATEGIES", "Draw", "draw_by_leverage", "draw_features"]

# Data-independent strategies, by the name that users give as `sampling`.
STRATEGIES: dict[str, Strategy] = {"uniform": draw_uniform, "orthogonal": draw_orthogonal, "qmc": draw_qmc}
SAMPLINGS = (*STRATEGIES, "leverage")

"""How random features are drawn: every strategy meets the kernel on average, some with less error than others."""

from quernel.features.sampling.draw import Draw, Strategy, draw, orthogonal, quasi, uniform
from quernel.features.sampling.leverage import SCORES, leverage

__all__ = ["SAMPLINGS", "SCORES", "STRATEGIES", "Draw", "draw", "leverage"]

# Strategies that do not look at the rows.
STRATEGIES: dict[str, Strategy] = {"uniform": uniform, "orthogonal": orthogonal, "qmc": quasi}
SAMPLINGS = (*STRATEGIES, "leverage")

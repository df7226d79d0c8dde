"""Gauss–Hermite quadrature: expectations of a function of one normal number."""

from functools import cache

import numpy as np
from scipy.special import roots_hermitenorm

LEVELS = (20, 64, 256)
"""Numbers of nodes; a wider belief, relative to the scale of the likelihood, needs more nodes."""

REACH = (1.0, 4.0)
"""Largest ratio of standard deviation to scale for the first and the second of `LEVELS`. The third
level is for all larger ratios."""


@cache
def gauss_hermite(num: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Return nodes $x_i$ and weights $w_i$ for the standard normal distribution.

    For a standard normal number x, the expectation $E[f(x)]$ is about $\sum_i w_i f(x_i)$.

    Args:
        num: Number of nodes.

    Example:
        >>> x, w = gauss_hermite(20)
        >>> round(float(w @ x**4), 10)
        3.0
    """
    nodes, weights = roots_hermitenorm(num)
    return nodes, weights / weights.sum()

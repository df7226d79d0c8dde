"""One-dimensional Gauss–Hermite rules for expectations under a normal distribution."""

from functools import cache

import numpy as np
from scipy.special import roots_hermitenorm

LEVELS = (20, 64, 256)
"""Numbers of nodes to choose from, by how wide the belief is against the likelihood's own scale."""

REACH = (1.0, 4.0)
"""Widest sd/scale served by the first and the second level."""


@cache
def gauss_hermite(num: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Nodes and weights with $E[f(x)] \approx \sum_i w_i f(x_i)$ for standard normal x.

    Example:
        >>> x, w = gauss_hermite(20)
        >>> round(float(w @ x**4), 10)
        3.0
    """
    nodes, weights = roots_hermitenorm(num)
    return nodes, weights / weights.sum()

"""One-dimensional Gauss–Hermite rules for expectations under a normal distribution."""

from functools import cache

import numpy as np
from scipy.special import roots_hermitenorm

LEVELS = (20, 64, 256)
"""Numbers of nodes, for beliefs of growing width relative to the scale of the likelihood."""

REACH = (1.0, 4.0)
"""Largest sd/scale for which the first and the second level are used."""


@cache
def gauss_hermite(num: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Return nodes and weights with $E[f(x)] \approx \sum_i w_i f(x_i)$ for standard normal x.

    Example:
        >>> x, w = gauss_hermite(20)
        >>> round(float(w @ x**4), 10)
        3.0
    """
    nodes, weights = roots_hermitenorm(num)
    return nodes, weights / weights.sum()

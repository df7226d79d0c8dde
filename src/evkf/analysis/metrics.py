"""Metrics of estimates and learned systems, for simulations where the truth is known."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.spatial import KDTree
from scipy.special import ndtri

from evkf.dynamics import Dynamics
from evkf.families import Family
from evkf.types import Belief


def mean_log_density(family: Family, beliefs: Belief, states: Float[Array, "T L"]) -> float:
    r"""Return the mean of $\log q(z_t)$ at the true states, in nats per bin.

    Example:
        >>> from evkf.families import GaussianFamily, GaussianBelief
        >>> beliefs = GaussianBelief(jnp.zeros((3, 1)), jnp.ones((3, 1, 1)))
        >>> round(mean_log_density(GaussianFamily(1), beliefs, jnp.zeros((3, 1))), 4)
        -0.9189
    """
    return float(jnp.mean(jax.vmap(family.log_prob)(beliefs, jnp.asarray(states))))


def transition_kl(true: Dynamics, learned: Dynamics, states: Float[Array, "T L"]) -> float:
    r"""Return the mean of $KL(p_{true}(z'|z) \| p_{learned}(z'|z))$ over states, a bin ahead.

    Example:
        >>> from evkf.dynamics import Linear
        >>> system = Linear([[0.9]], noise=0.1)
        >>> transition_kl(system, system, jnp.ones((5, 1)))
        0.0
    """
    none = jnp.zeros(true.num_inputs)

    def divergence(z: Float[Array, " L"]) -> Array:
        return true.family.kl(true.transition(z, none), learned.transition(z, none))

    return float(jnp.mean(jax.vmap(divergence)(jnp.asarray(states))))


def log_chamfer(one: Float[np.ndarray, "T L"], other: Float[np.ndarray, "S L"]) -> float:
    """Return the logarithm of the symmetric Chamfer distance of two clouds of points.

    Example:
        >>> import numpy as np
        >>> log_chamfer(np.zeros((4, 2)), np.array([[0.5, 0.0]]))
        0.0
    """
    there, _ = KDTree(other).query(one)
    back, _ = KDTree(one).query(other)
    return float(np.log(np.mean(there) + np.mean(back)))


def roughness(path: Float[np.ndarray, "T L"], truth: Float[np.ndarray, "T L"]) -> float:
    """Return the root mean square second difference of a path, relative to the true one.

    Example:
        >>> import numpy as np
        >>> truth = np.array([[0.0], [1.0], [0.0], [1.0]])
        >>> roughness(0.5 * truth, truth)
        0.5
    """
    bends = [np.diff(np.asarray(each), n=2, axis=0) for each in (path, truth)]
    return float(np.sqrt(np.mean(bends[0] ** 2) / np.mean(bends[1] ** 2)))


def affine_map(
    states: Float[np.ndarray, "T L"], truth: Float[np.ndarray, "T K"]
) -> tuple[Float[np.ndarray, "L K"], Float[np.ndarray, " K"]]:
    r"""Return the least-squares map $z \mapsto zW + w$ onto the truth.

    Example:
        >>> import numpy as np
        >>> states = np.random.default_rng(0).normal(size=(20, 2))
        >>> weight, offset = affine_map(states, 2 * states + 1)
        >>> bool(np.allclose(weight, 2 * np.eye(2)) and np.allclose(offset, 1))
        True
    """
    design = np.column_stack([states, np.ones(len(states))])
    weights = np.linalg.lstsq(design, truth, rcond=None)[0]
    return weights[:-1], weights[-1]


def affine_r2(states: Float[np.ndarray, "T L"], truth: Float[np.ndarray, "T K"]) -> float:
    """Return the share of the true variance that states explain after the best affine map.

    Example:
        >>> import numpy as np
        >>> states = np.random.default_rng(0).normal(size=(20, 2))
        >>> round(affine_r2(states, 2 * states + 1), 6)
        1.0
    """
    states, truth = np.asarray(states, float), np.asarray(truth, float)
    weight, offset = affine_map(states, truth)
    rest = truth - states @ weight - offset
    return float(1 - rest.var(axis=0).sum() / truth.var(axis=0).sum())


def coverage(
    mean: Float[np.ndarray, "T L"],
    cov: Float[np.ndarray, "T L L"],
    truth: Float[np.ndarray, "T L"],
    level: float = 0.9,
) -> float:
    """Return the share of true coordinates inside central intervals of a level.

    Example:
        >>> import numpy as np
        >>> truth = np.random.default_rng(0).normal(size=(10_000, 1))
        >>> round(coverage(0 * truth, np.ones((10_000, 1, 1)), truth), 1)
        0.9
    """
    std = np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1))
    return float(np.mean(np.abs(np.asarray(truth) - mean) < ndtri(0.5 + level / 2) * std))

"""Compare estimates and learned dynamics with the truth, for simulations.

Latent states are denoted z; "truth" means the simulated latent states.
"""

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
    r"""Return the mean log-density of beliefs at the true latent states, in nats per bin.

    This is the mean over bins t of $\log q_t(z_t)$, where $q_t$ is the belief about bin t and $z_t$
    the true latent state. Higher is better.

    Args:
        family: Exponential family of the beliefs.
        beliefs: Beliefs, with a leading axis of bins.
        states: True latent states, (bins, latents).

    Example:
        >>> from evkf.families import GaussianFamily, GaussianBelief
        >>> beliefs = GaussianBelief(jnp.zeros((3, 1)), jnp.ones((3, 1, 1)))
        >>> round(mean_log_density(GaussianFamily(1), beliefs, jnp.zeros((3, 1))), 4)
        -0.9189
    """
    return float(jnp.mean(jax.vmap(family.log_prob)(beliefs, jnp.asarray(states))))


def transition_kl(true: Dynamics, learned: Dynamics, states: Float[Array, "T L"]) -> float:
    r"""Return the mean divergence of the learned transition from the true transition, in nats.

    This is the mean of $KL(p_{true}(z'|z) \| p_{learned}(z'|z))$ over given latent states z, where
    z' is the latent state one bin later. Inputs are zero.

    Args:
        true: True dynamics.
        learned: Learned dynamics, in the same coordinates as the true dynamics.
        states: Latent states z, (states, latents).

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
    """Return the logarithm of the symmetric Chamfer distance between two sets of points.

    The Chamfer distance is the mean distance from a point of the first set to the nearest point of
    the second set, plus the mean distance from a point of the second set to the nearest point of
    the first set.

    Args:
        one: First set, (points, latents).
        other: Second set, (points, latents).

    Example:
        >>> import numpy as np
        >>> log_chamfer(np.zeros((4, 2)), np.array([[0.5, 0.0]]))
        0.0
    """
    there, _ = KDTree(other).query(one)
    back, _ = KDTree(one).query(other)
    return float(np.log(np.mean(there) + np.mean(back)))


def roughness(path: Float[np.ndarray, "T L"], truth: Float[np.ndarray, "T L"]) -> float:
    """Return how rough a path is, relative to the true path; 1 if both are equally rough.

    This is the root mean square of the second differences (over bins) of the path, divided by the
    root mean square of the second differences of the true path.

    Args:
        path: Estimated path, (bins, latents).
        truth: True path, (bins, latents).

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
    r"""Return weights and offset of the affine map that best fits estimated states to the truth.

    The map is $z \mapsto zW + w$, fitted by least squares: z is an estimated state (a row), W the
    weights and w the offset.

    Args:
        states: Estimated latent states, (bins, latents).
        truth: True values, (bins, coordinates).

    Returns:
        Weights W, (latents, coordinates), and offset w, (coordinates,).

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
    """Return the share of the true variance that estimated states explain after an affine map.

    The map is that of `affine_map`, fitted to the same bins. Variances are summed over coordinates
    before they are divided.

    Args:
        states: Estimated latent states, (bins, latents).
        truth: True values, (bins, coordinates).

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
    """Return the share of true values that lie inside the estimated intervals.

    Each bin and each latent dimension has one interval: the central interval of a Gaussian, centred
    at the mean. Estimates are well calibrated if the share is close to `level`.

    Args:
        mean: Estimated means, (bins, latents).
        cov: Estimated covariances, (bins, latents, latents).
        truth: True latent states, (bins, latents).
        level: Probability of an interval, between 0 and 1.

    Example:
        >>> import numpy as np
        >>> truth = np.random.default_rng(0).normal(size=(10_000, 1))
        >>> round(coverage(0 * truth, np.ones((10_000, 1, 1)), truth), 1)
        0.9
    """
    std = np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1))
    return float(np.mean(np.abs(np.asarray(truth) - mean) < ndtri(0.5 + level / 2) * std))

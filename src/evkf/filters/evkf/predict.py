r"""The variational prediction of a belief, and the variance correction of the prediction.

The predicted natural parameters are $\bar\lambda = E_q[\lambda_\theta(z)]$, where q is the belief
about the last bin and $\lambda_\theta(z)$ are the natural parameters of $p(z_t|z_{t-1} = z)$. The
expectation is a weighted sum over nodes: fixed cubature points or random samples of q. P is the
covariance of q, f the mean of the dynamics.

Paper: lemma:variational_prediction, eq:nat_param_predict, and the section on underestimated
variance.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool

from evkf.dynamics import Dynamics, GaussianDynamics
from evkf.errors import InputError
from evkf.families import (
    DiagonalGaussianFamily,
    GaussianBelief,
    GaussianFamily,
    LowRankBelief,
    LowRankGaussianFamily,
    Nodes,
)
from evkf.families.gaussian import cubature
from evkf.filters.evkf.results import AdditiveCross, NaturalCross, Prediction
from evkf.model import Model
from evkf.numerics.covariance import DiagonalCovariance
from evkf.numerics.linalg import (
    any_true,
    cholesky,
    diagonal,
    factorisable,
    symmetrize,
    total,
    tree_where,
)
from evkf.types import Belief, Input, Key, Matrix, Nat, Vector

RULES = ("cubature", "monte_carlo", "moment_matching")

MAX_STD = 1e4
"""Default of the largest mean (in absolute value) and standard deviation of a Gaussian prediction.
"""

PATTERNS = 16
"""Largest number of sign patterns in `push_low_rank`; a power of two."""


def predict(
    model: Model,
    belief: Belief,
    u: Input,
    key: Key,
    rule: str,
    num_samples: int,
    correct: bool,
    max_std: float,
) -> Prediction:
    r"""Return the prediction for a bin, from the belief about the last bin and the dynamics.

    Without correction, natural parameters are averaged, which loses the variance of the last
    belief. With correction, mean and covariance follow the law of total variance for linearised
    dynamics. Let $m_\theta(z)$ and $V_\theta(z)$ be mean and covariance of $p(z_t|z_{t-1} = z)$,
    and M the Jacobian of $m_\theta$ at the mean of the last belief. The predicted mean is
    $E_q[m_\theta(z)]$; the predicted covariance is $E_q[V_\theta(z)] + M P M^\top$. (For Gamma
    beliefs the corrected mean is $E_q[f]$, whereas averaged natural parameters give
    $E_q[f^2]/E_q[f]$.) Moment matching averages mean parameters, and needs no correction.

    Args:
        model: The state-space model.
        belief: The belief about the last bin.
        u: Input of this bin, (inputs,).
        key: JAX random key, used by the rule "monte_carlo" only.
        rule: One of `RULES`; see `VariationalKalmanFilter`.
        num_samples: Number of samples for the rule "monte_carlo".
        correct: True to correct the variance.
        max_std: Largest mean (in absolute value) and standard deviation of Gaussian predictions.
            Larger values are cut, and `capped` is True. If the prediction contains NaN, the last
            belief is returned, and `failed` is True.
    """
    if isinstance(model.dynamics, GaussianDynamics) and isinstance(model.family, GaussianFamily):
        new, cross = push_forward(model.dynamics, belief, u, key, rule, num_samples, correct)
        mean, cov, capped = cap(*new, max_std)
        new = GaussianBelief(mean, cov)
    elif isinstance(model.family, LowRankGaussianFamily):
        new, cross = push_low_rank(model.dynamics, belief, u, rule, correct)
        std = jnp.sqrt(new.diagonal + jnp.sum(new.factor**2, axis=1))
        shrink = jnp.where(std > max_std, max_std / std, 1)
        capped = jnp.any(std > max_std) | jnp.any(jnp.abs(new.mean) > max_std)
        finite = jnp.isfinite(std)
        new = LowRankBelief(
            jnp.clip(new.mean, -max_std, max_std),
            jnp.where(finite, new.diagonal * shrink**2, max_std**2),
            jnp.where(finite[:, None], new.factor * shrink[:, None], 0),
        )
    else:
        new, cross, capped = _general(model, belief, u, key, rule, num_samples, correct, max_std)
    if isinstance(new, GaussianBelief):
        new = GaussianBelief(new.mean, factorisable(new.cov))
    failed = any_true(jnp.isnan(ravel_pytree(new)[0]))
    new = tree_where(failed, belief, new)
    return Prediction(new, cross, capped & ~failed, failed)


def push_forward(
    dynamics: GaussianDynamics,
    belief: GaussianBelief,
    u: Input,
    key: Key,
    rule: str,
    num_samples: int,
    correct: bool,
) -> tuple[GaussianBelief, AdditiveCross]:
    """Return the predicted Gaussian belief, and the terms that the gap $L_t - M_t$ needs.

    For dynamics with additive Gaussian noise. Large values are not cut, and NaN is not replaced:
    `predict` does both. The arguments are those of `predict`.
    """
    noise, root = dynamics.noise, cholesky(belief.cov)
    if rule == "monte_carlo":
        standard = jax.random.normal(key, (num_samples, len(root)), root.dtype)
        points = belief.mean + standard @ root.T
        nodes = Nodes(points, jnp.full(num_samples, 1 / num_samples, points.dtype))
    else:
        nodes = cubature(belief.mean, root)
    images = jax.vmap(dynamics.mean, in_axes=(0, None))(nodes.points, u)
    mean = nodes.weights @ images
    deviations = (images - mean) * jnp.sqrt(nodes.weights)[:, None]
    spread = total(noise.whiten(deviations.T) ** 2)
    cov = noise.matrix()
    if rule == "moment_matching":
        cov = cov + deviations.T @ deviations
    elif correct:
        # Push the Cholesky factor of P, not P: the sum stays positive definite after rounding.
        _, push = jax.linearize(lambda z: dynamics.mean(z, u), belief.mean)
        moved = jax.vmap(push)(root.T)
        cov = cov + moved.T @ moved
    return GaussianBelief(mean, cov), AdditiveCross(mean, spread)


def push_low_rank(
    dynamics: Dynamics, belief: LowRankBelief, u: Input, rule: str, correct: bool
) -> tuple[LowRankBelief, AdditiveCross]:
    r"""Return the prediction of a low-rank Gaussian belief, and the terms of the gap $L_t - M_t$.

    The belief has covariance $D + UU^\top$, D diagonal and U of few columns. The nodes are pairs
    of points at plus and minus a multiple of the columns of U, and of $\sqrt D$ times vectors of
    signs. The vectors of signs are rows of a Hadamard matrix. Sums over these rows give the
    diagonal of $MDM^\top$ (M the Jacobian of f), except that products of latents whose indices
    differ by a multiple of `PATTERNS` are counted too. The off-diagonal entries of $MDM^\top$ are
    dropped. Large values are not cut: `predict` does so. The arguments are those of `predict`.
    """
    if not isinstance(dynamics, GaussianDynamics):
        raise InputError(
            f"{type(dynamics).__name__} of LowRankGaussianFamily states",
            "dynamics",
            "use dynamics with additive Gaussian noise (GaussianDynamics), or Gaussian states",
        )
    if not isinstance(dynamics.noise, DiagonalCovariance):
        raise InputError(
            f"{type(dynamics).__name__} with a full noise matrix",
            "LowRankGaussianFamily",
            "pass one variance per latent, or use Gaussian states",
        )
    if rule == "monte_carlo":
        raise InputError(
            "rule='monte_carlo' for LowRankGaussianFamily states",
            "rule",
            "use 'cubature' or 'moment_matching'",
        )
    from scipy.linalg import hadamard  # slow to import, and needed for these beliefs alone

    mean, diagonal, factor = belief
    size, rank = factor.shape
    patterns = hadamard(min(PATTERNS, 1 << (size - 1).bit_length()))
    signs = jnp.asarray(patterns[:, np.arange(size) % len(patterns)], mean.dtype)
    rows = jnp.concatenate([factor.T, jnp.sqrt(diagonal) * signs / math.sqrt(len(patterns))])
    reach = math.sqrt(len(rows))
    step = jax.vmap(lambda z: dynamics.mean(z, u))
    high, low = step(mean + reach * rows), step(mean - reach * rows)
    new = 0.5 * (jnp.mean(high, axis=0) + jnp.mean(low, axis=0))
    noise = dynamics.noise
    off = jnp.concatenate([high, low]) - new
    spread = jnp.sum(noise.whiten(off.T) ** 2) / len(off)
    cross = AdditiveCross(new, spread)
    if not correct and rule != "moment_matching":
        return LowRankBelief(new, noise.var(), jnp.zeros_like(factor)), cross
    if rule == "moment_matching":
        moved = (high - low) / (2 * reach)
    else:
        moved = jax.vmap(jax.linearize(lambda z: dynamics.mean(z, u), mean)[1])(rows)
    own = noise.var() + jnp.sum(moved[rank:] ** 2, axis=0)
    return LowRankBelief(new, own, moved[:rank].T), cross


def _general(
    model: Model,
    belief: Belief,
    u: Input,
    key: Key,
    rule: str,
    num_samples: int,
    correct: bool,
    max_std: float,
) -> tuple[Belief, NaturalCross, Bool[Array, ""]]:
    family = model.family
    can_explode = isinstance(family, GaussianFamily | DiagonalGaussianFamily)
    if rule == "monte_carlo":
        points = family.sample(belief, key, num_samples)
        nodes = Nodes(points, jnp.full(num_samples, 1 / num_samples, points.dtype))
    else:
        nodes = family.nodes(belief)

    def average(trees: Nat) -> Nat:
        return jax.tree.map(lambda leaf: jnp.tensordot(nodes.weights, leaf, 1), trees)

    conditionals = jax.vmap(model.transition, in_axes=(0, None))(nodes.points, u)
    nats = jax.vmap(family.nat)(conditionals)
    nat = average(nats)
    cross = NaturalCross(nat, average(jax.vmap(family.log_partition)(nats)))
    if rule == "moment_matching" or not correct:
        if rule == "moment_matching":
            nat = family.to_nat(average(jax.vmap(family.to_mean)(nats)))
        new = family.from_nat(nat)
        if not can_explode:
            return new, cross, jnp.asarray(False)
        mean, cov, capped = cap(family.mean(new), family.cov(new), max_std)
        return tree_where(capped, family.from_moments(mean, cov), new), cross, capped

    def mean_of(z: Vector) -> Vector:
        return family.mean(model.transition(z, u))

    jacobian = jax.jacfwd(mean_of)(family.mean(belief))
    mean = average(jax.vmap(family.mean)(conditionals))
    cov: Matrix = average(jax.vmap(family.cov)(conditionals))
    cov = cov + symmetrize(jacobian @ family.cov(belief) @ jacobian.T)
    capped = jnp.asarray(False)
    if can_explode:
        mean, cov, capped = cap(mean, cov, max_std)
    return family.from_moments(mean, cov), cross, capped


def cap(mean: Vector, cov: Matrix, max_std: float) -> tuple[Vector, Matrix, Bool[Array, ""]]:
    r"""Return the mean and covariance after cutting large values, and True if any was cut.

    Means are cut to between -`max_std` and `max_std`, standard deviations to at most `max_std`.
    Correlations stay, but a latent whose variance is infinite becomes uncorrelated with all others.
    """
    var = diagonal(cov)
    over = var > max_std**2
    shrink = jnp.where(over, max_std / jnp.sqrt(jnp.where(over, var, 1)), 1)
    overflowed = jnp.isinf(var)
    replaced = jnp.eye(len(mean), dtype=mean.dtype) * jnp.where(overflowed, max_std**2, 0)
    kept = jnp.where(overflowed[:, None] | overflowed | jnp.isinf(cov), 0, cov)
    shrunk = kept * shrink[:, None] * shrink + replaced
    capped = any_true(over | (jnp.abs(mean) > max_std))
    return jnp.clip(mean, -max_std, max_std), shrunk, capped

"""The variational prediction $\\bar\\lambda = E_q[\\lambda_\\theta(z)]$ and its variance
correction.

Paper: lemma:variational_prediction, eq:nat_param_predict, and the section on underestimated
variance.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evkf.dynamics import GaussianDynamics
from evkf.families import DiagonalGaussian, Gaussian, GaussianBelief, Nodes
from evkf.families.gaussian import cubature
from evkf.model import Model
from evkf.numerics import cholesky, factorisable, symmetrize
from evkf.types import Belief, Input, Key, Matrix, Nat, Scalar, Vector

RULES = ("cubature", "monte_carlo", "moment_matching")


class AdditiveCross(NamedTuple):
    """What $E_q E_{q_{t-1}}[\\log p(z_t|z_{t-1})]$ needs when the noise is additive and
    Gaussian.
    """

    mean: Vector
    """$E[f]$ over the nodes."""
    spread: Scalar
    """$\\text{tr}(Q^{-1} \\text{Cov} f)$ over the nodes."""


class NaturalCross(NamedTuple):
    """The same for any family: $\\langle E[\\lambda_\\theta], \\mu \\rangle -
    E[A(\\lambda_\\theta)]$.
    """

    nat: Nat
    log_partition: Scalar


class Prediction(NamedTuple):
    """The belief before the observation, and what the bounds need to know of how it was made."""

    belief: Belief
    cross: AdditiveCross | NaturalCross
    capped: Bool[Array, ""]
    failed: Bool[Array, ""]


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
    """Push a belief through the dynamics.

    Without correction the mean of natural parameters is taken, which loses the variance the belief
    had. With it, mean and covariance follow the law of total variance, the dynamics linearised:
    $E[m_\\theta(z)]$ and $E[V_\\theta(z)] + M P M^\\top$, $M = \\nabla m_\\theta$ at the mean. (For
    Gamma this keeps $E[f]$, not the $E[f^2]/E[f]$ that averaging natural parameters gives.) Moment
    matching averages mean parameters, and so propagates the variance by itself.
    """
    if isinstance(model.dynamics, GaussianDynamics) and isinstance(model.family, Gaussian):
        new, cross = _additive(model.dynamics, belief, u, key, rule, num_samples, correct)
    else:
        new, cross = _general(model, belief, u, key, rule, num_samples, correct)
    capped = jnp.asarray(False)
    if isinstance(model.family, Gaussian | DiagonalGaussian):
        new, capped = _cap(model.family, new, max_std)
    if isinstance(new, GaussianBelief):
        new = GaussianBelief(new.mean, factorisable(new.cov))
    failed = _has_nan(new)
    new = jax.tree.map(lambda a, b: jnp.where(failed, b, a), new, belief)
    return Prediction(new, cross, capped & ~failed, failed)


def _samples(points: Float[Array, "S L"]) -> Nodes:
    return Nodes(points, jnp.full(len(points), 1 / len(points), points.dtype))


def _additive(
    dynamics: GaussianDynamics,
    belief: GaussianBelief,
    u: Input,
    key: Key,
    rule: str,
    num_samples: int,
    correct: bool,
) -> tuple[GaussianBelief, AdditiveCross]:
    noise, root = dynamics.noise, cholesky(belief.cov)
    if rule == "monte_carlo":
        standard = jax.random.normal(key, (num_samples, len(root)), root.dtype)
        nodes = _samples(belief.mean + standard @ root.T)
    else:
        nodes = cubature(belief.mean, root)
    images = jax.vmap(dynamics.mean, in_axes=(0, None))(nodes.points, u)
    mean = nodes.weights @ images
    deviations = (images - mean) * jnp.sqrt(nodes.weights)[:, None]
    spread = jnp.sum(noise.whiten(deviations.T) ** 2)
    cov = noise.matrix()
    if rule == "moment_matching":
        cov = cov + deviations.T @ deviations
    elif correct:
        # The image of a root, not of P: the sum stays positive definite in floating point.
        _, push = jax.linearize(lambda z: dynamics.mean(z, u), belief.mean)
        moved = jax.vmap(push)(root.T)
        cov = cov + moved.T @ moved
    return GaussianBelief(mean, cov), AdditiveCross(mean, spread)


def _general(
    model: Model,
    belief: Belief,
    u: Input,
    key: Key,
    rule: str,
    num_samples: int,
    correct: bool,
) -> tuple[Belief, NaturalCross]:
    family = model.family
    if rule == "monte_carlo":
        nodes = _samples(family.sample(belief, key, num_samples))
    else:
        nodes = family.nodes(belief)

    def average(trees: Nat) -> Nat:
        return jax.tree.map(lambda leaf: jnp.tensordot(nodes.weights, leaf, 1), trees)

    conditionals = jax.vmap(model.transition, in_axes=(0, None))(nodes.points, u)
    nats = jax.vmap(family.nat)(conditionals)
    nat = average(nats)
    cross = NaturalCross(nat, average(jax.vmap(family.log_partition)(nats)))
    if rule == "moment_matching":
        mean_params = average(jax.vmap(family.to_mean)(nats))
        return family.from_nat(family.to_nat(mean_params)), cross
    if not correct:
        return family.from_nat(nat), cross

    def mean_of(z: Vector) -> Vector:
        return family.mean(model.transition(z, u))

    jacobian = jax.jacfwd(mean_of)(family.mean(belief))
    mean = average(jax.vmap(family.mean)(conditionals))
    cov: Matrix = average(jax.vmap(family.cov)(conditionals))
    cov = cov + symmetrize(jacobian @ family.cov(belief) @ jacobian.T)
    return family.from_moments(mean, cov), cross


def _has_nan(tree: Belief) -> Bool[Array, ""]:
    return jnp.any(jnp.stack([jnp.any(jnp.isnan(leaf)) for leaf in jax.tree.leaves(tree)]))


def _cap(
    family: Gaussian | DiagonalGaussian, belief: Belief, max_std: float
) -> tuple[Belief, Bool[Array, ""]]:
    """Bring mean and standard deviations into $[-max, max]$, correlations unchanged.

    Where the covariance overflowed its correlations are lost, and it becomes diagonal.
    """
    before, cov = family.mean(belief), family.cov(belief)
    mean = jnp.clip(before, -max_std, max_std)
    var = jnp.diagonal(cov)
    over = var > max_std**2
    shrink = jnp.where(over, max_std / jnp.sqrt(jnp.where(over, var, 1)), 1)
    finite = jnp.all(jnp.isfinite(cov) | jnp.isnan(cov))
    cov = jnp.where(finite, cov, jnp.diag(jnp.minimum(var, max_std**2)))
    cov = cov * jnp.where(finite, shrink[:, None] * shrink, 1)
    capped = jnp.any(over) | jnp.any((mean != before) & ~jnp.isnan(before))
    return jax.tree.map(
        lambda a, b: jnp.where(capped, a, b), family.from_moments(mean, cov), belief
    ), capped

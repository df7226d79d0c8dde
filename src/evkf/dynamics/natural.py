"""Dynamics beyond additive Gaussian noise: positive, bounded, saturating and binary states.

Each takes a `network`, any module that maps $[z, u]$ to a vector, and turns its output into valid
natural parameters, whatever the output is.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evkf.dynamics.base import Dynamics
from evkf.errors import InputError
from evkf.families import BetaFamily, Family, GammaFamily
from evkf.numerics.checks import read_positive
from evkf.types import Belief, Input, Scalar, Vector

FLOOR = 1e-4
"""Smallest mean a Gamma or (from either end) a Beta transition can have."""


def _check_length(
    network: Callable[..., Any], family: Family, num_inputs: int, length: int
) -> None:
    given: object = network
    if not isinstance(given, eqx.Module):
        raise InputError(
            f"network is a {type(network).__name__}",
            "network",
            "pass an equinox.Module with a __call__, so that its parameters are traced",
        )
    x = jax.ShapeDtypeStruct((family.dim + num_inputs,), jnp.result_type(float))
    got = jax.eval_shape(network, x).shape
    if got != (length,):
        raise InputError(
            f"network gives shape {got} for {family.dim} latents and {num_inputs} inputs",
            "network",
            f"let it give a vector of length {length}",
        )


class NaturalDynamics(Dynamics):
    r"""The general map $\lambda_\theta(z)$ of a network, for any family.

    For the Gaussian the precision depends on the state; for the continuous Bernoulli and the
    Bernoulli the output is $\lambda$ itself. `family.from_unconstrained` turns raw outputs into
    valid natural parameters.

    Args:
        family: The family of the states.
        network: Maps $[z, u]$ to `family.num_raw` numbers.
        num_inputs: Length of u.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from evkf.dynamics import Network
        >>> from evkf.families import ContinuousBernoulliFamily
        >>> network = Network([2, 16, 2], jax.random.key(0))
        >>> dynamics = NaturalDynamics(ContinuousBernoulliFamily(2), network)
        >>> dynamics.transition(jnp.full(2, 0.5), jnp.zeros(0)).shape
        (2, 1)
    """

    family: Family
    network: Callable[..., Any]
    num_inputs: int = eqx.field(static=True)

    def __init__(self, family: Family, network: Callable[..., Any], num_inputs: int = 0):
        _check_length(network, family, num_inputs, family.num_raw)
        self.family, self.network, self.num_inputs = family, network, num_inputs

    def transition(self, z: Vector, u: Input) -> Belief:
        raw = self.network(jnp.concatenate([z, u]))
        return self.family.from_nat(self.family.from_unconstrained(raw))


class GammaDynamics(Dynamics):
    r"""Positive states: $z_t \sim \text{Gamma}(b_0 f^2, b_0 f)$ with mean f and variance $1/b_0$.

    $f = \text{softplus}$ of the network. Paper: sec:gamma.

    Args:
        network: Maps $[z, u]$ to one number per latent.
        dim: Latent dimensions.
        precision: $b_0$.
        num_inputs: Length of u.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from evkf.dynamics import Network
        >>> dynamics = GammaDynamics(Network([1, 8, 1], jax.random.key(0)), 1, precision=25.0)
        >>> round(float(dynamics.family.var(dynamics.transition(jnp.ones(1), jnp.zeros(0)))[0]), 4)
        0.04
    """

    network: Callable[..., Any]
    log_precision: Scalar
    family: GammaFamily
    num_inputs: int = eqx.field(static=True)

    def __init__(
        self, network: Callable[..., Any], dim: int, precision: float, num_inputs: int = 0
    ):
        self.family = GammaFamily(dim)
        _check_length(network, self.family, num_inputs, dim)
        self.network, self.num_inputs = network, num_inputs
        self.log_precision = jnp.log(read_positive(precision, (), "precision"))

    def transition(self, z: Vector, u: Input) -> Float[Array, "L 2"]:
        mean = jax.nn.softplus(self.network(jnp.concatenate([z, u]))) + FLOOR
        rate = jnp.exp(self.log_precision) * mean
        return jnp.stack([rate * mean - 1, -rate], axis=-1)


class BetaDynamics(Dynamics):
    r"""Peaked states between 0 and 1: $z_t \sim \text{Beta}(\kappa f, \kappa(1 - f))$, mean f.

    $f = \text{sigmoid}$ of the network.

    Args:
        network: Maps $[z, u]$ to one number per latent.
        dim: Latent dimensions.
        concentration: $\kappa$; the variance is $f(1 - f)/(\kappa + 1)$.
        num_inputs: Length of u.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from evkf.dynamics import Network
        >>> dynamics = BetaDynamics(Network([1, 8, 1], jax.random.key(0)), 1, concentration=50.0)
        >>> float(jnp.sum(dynamics.transition(jnp.full(1, 0.5), jnp.zeros(0)))).__round__(2)
        48.0
    """

    network: Callable[..., Any]
    log_concentration: Scalar
    family: BetaFamily
    num_inputs: int = eqx.field(static=True)

    def __init__(
        self, network: Callable[..., Any], dim: int, concentration: float, num_inputs: int = 0
    ):
        self.family = BetaFamily(dim)
        _check_length(network, self.family, num_inputs, dim)
        self.network, self.num_inputs = network, num_inputs
        self.log_concentration = jnp.log(read_positive(concentration, (), "concentration"))

    def transition(self, z: Vector, u: Input) -> Float[Array, "L 2"]:
        share = jax.nn.sigmoid(self.network(jnp.concatenate([z, u])))
        mean = FLOOR + (1 - 2 * FLOOR) * share
        total = jnp.exp(self.log_concentration)
        return jnp.stack([total * mean - 1, total * (1 - mean) - 1], axis=-1)

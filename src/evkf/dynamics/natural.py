"""Dynamics without additive Gaussian noise, such as of positive, bounded or binary states.

Each class takes a `network`, an `equinox.Module` that maps the concatenated vector $[z, u]$ of
latent state and input to a vector. The class turns any output of the network into a valid
distribution of the next state.
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
"""Smallest mean of a Gamma transition; smallest distance of the mean of a Beta transition from 0
and 1."""


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
    r"""Dynamics in which a network gives all natural parameters of the next state.

    `family.from_unconstrained` turns the output of the network into valid natural parameters. In a
    Gaussian family, both mean and variance of the next state then depend on this state. In the
    continuous Bernoulli and the Bernoulli family, the output is the natural parameter itself.

    Args:
        family: Exponential family of the latent state, such as `GammaFamily(2)`.
        network: An `equinox.Module` that maps $[z, u]$ to a vector of length `family.num_raw`.
        num_inputs: Length of the input u; zero when left out.

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
    r"""Dynamics of positive states, $z_t \sim \text{Gamma}(b_0 f^2, b_0 f)$ (shape, rate).

    The mean is $f$, the softplus of the network's output plus 1e-4. The variance is $1/b_0$ at
    every state. Paper: sec:gamma.

    Args:
        network: An `equinox.Module` that maps $[z, u]$ to one number for each latent.
        dim: Number of latent dimensions.
        precision: $b_0$, one positive number for all dimensions.
        num_inputs: Length of the input u; zero when left out.

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
    r"""Dynamics of states between 0 and 1, $z_t \sim \text{Beta}(\kappa f, \kappa(1 - f))$.

    The mean $f$ is the sigmoid of the network's output, rescaled to the range from 1e-4 to
    1 - 1e-4. The variance is $f(1 - f)/(\kappa + 1)$.

    Args:
        network: An `equinox.Module` that maps $[z, u]$ to one number for each latent.
        dim: Number of latent dimensions.
        concentration: $\kappa$, one positive number for all dimensions.
        num_inputs: Length of the input u; zero when left out.

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

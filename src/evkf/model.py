"""The generative model (prior, dynamics and observation model), and simulation from it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from evkf.dynamics import Dynamics
from evkf.errors import InputError
from evkf.families import (
    DiagonalGaussianFamily,
    Family,
    GaussianBelief,
    GaussianFamily,
    LowRankBelief,
    LowRankGaussianFamily,
    ProductFamily,
)
from evkf.likelihoods import Likelihood
from evkf.likelihoods.shapes import check_likelihood
from evkf.numerics.checks import check_whole, read_array, real_numbers
from evkf.numerics.covariance import positive_root
from evkf.types import Belief, Input, Key, Vector


class Model(eqx.Module):
    r"""A generative model of latent states $z_t$ and observations $y_t$ in bins t = 1, 2, ....

    The initial state is drawn from the prior, $z_0 \sim q_0$. In each bin the dynamics give the
    state, $z_t \sim p_\theta(z_t | z_{t-1}, u_t)$ with input $u_t$, and the likelihood gives the
    observation, $y_t \sim p_\psi(y_t | z_t)$.

    Args:
        dynamics: $p_\theta$, the distribution of the next state.
        likelihood: $p_\psi$, the observation model.
        prior: $q_0$, the belief about the state before the first bin, as returned by
            `family.from_moments(mean, cov)`. When left out, a default of the family: for Gaussian
            families mean 0 and variance 1.
        family: Exponential family of the beliefs about the state. When left out, the family of the
            dynamics. In place of `GaussianFamily`, `DiagonalGaussianFamily` and
            `LowRankGaussianFamily` can be used.

    Example:
        >>> import jax
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0], [0.0, 1.0]], bin_width=0.005))
        >>> zs, ys = simulate(model, jax.random.key(0), 100)
        >>> zs.shape, ys.shape
        ((100, 2), (100, 2))
    """

    dynamics: Dynamics
    likelihood: Likelihood
    prior: Belief
    family: Family

    def __init__(
        self,
        dynamics: Dynamics,
        likelihood: Likelihood,
        prior: Belief | None = None,
        family: Family | None = None,
    ):
        self.dynamics, self.likelihood = dynamics, likelihood
        self.family = dynamics.family if family is None else family
        _check_family(self.family, dynamics)
        check_likelihood(likelihood, dynamics.dim)
        if prior is None:
            dtype = jnp.result_type(float)
            self.prior = jax.tree.map(lambda x: jnp.asarray(x, dtype), _standard(self.family))
        else:
            self.prior = _check_prior(self.family, prior)

    def transition(self, z: Vector, u: Input) -> Belief:
        r"""Return the distribution of the next state given state z and input u.

        The distribution is a belief of the family of this model. If that is not the family of the
        dynamics, mean and covariance are converted by `from_moments`.
        """
        native = self.dynamics.family
        belief = self.dynamics.transition(z, u)
        if type(native) is type(self.family):
            return belief
        return self.family.from_moments(native.mean(belief), native.cov(belief))


def simulate(
    model: Model,
    key: Key,
    num_bins: int,
    us: ArrayLike | None = None,
    z0: ArrayLike | None = None,
) -> tuple[Float[Array, "T L"], Float[Array, "T N"]]:
    """Simulate a model: draw random latent states and observations.

    Args:
        model: Dynamics, likelihood and prior to simulate.
        key: JAX random key.
        num_bins: T, the number of bins.
        us: Inputs, (T, inputs); needed if the dynamics take inputs.
        z0: State before the first bin, (latents,); drawn from the prior when left out.

    Returns:
        States (T, latents) and observations (T, channels).

    Example:
        >>> import jax
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Gaussian
        >>> model = Model(Linear([[0.9]], noise=0.1), Gaussian([[1.0], [2.0]]))
        >>> states, observations = simulate(model, jax.random.key(0), 20)
        >>> states.shape, observations.shape
        ((20, 1), (20, 2))
    """
    check_whole(num_bins, 1, "num_bins")
    us = read_inputs(model, us, num_bins)
    start_key, run_key = jax.random.split(key)
    if z0 is None:
        start = model.family.sample(model.prior, start_key, 1)[0]
    elif isinstance(z0, Tracer):  # as under `jax.vmap`: there is a shape, but there are no values
        if z0.shape != (model.family.dim,):
            raise InputError(f"z0 of shape {z0.shape}", "z0", f"pass shape ({model.family.dim},)")
        start = jnp.asarray(z0, jnp.result_type(float))
    else:
        start = read_array(z0, (model.family.dim,), "z0")
    return draw_path(model, jax.random.split(run_key, num_bins), us, start)


def read_inputs(model: Model, us: ArrayLike | None, num_bins: int) -> Float[Array, "T U"]:
    """Return the inputs of a recording as a JAX array, (num_bins, inputs).

    Pass None for `us` if the dynamics take no inputs. Raise InputError if the inputs are not
    finite or have a wrong shape.
    """
    size = model.dynamics.num_inputs
    array = np.zeros((num_bins, 0)) if us is None else real_numbers(us, "us")
    if array.shape != (num_bins, size):
        raise InputError(
            f"inputs of shape {array.shape}" if us is not None else "no inputs",
            "us",
            f"pass shape ({num_bins}, {size}): the dynamics take {size} inputs",
        )
    if not np.all(np.isfinite(array)):
        raise InputError("inputs that are not finite", "us", "pass finite numbers")
    return jnp.asarray(array, jnp.result_type(float))


@jax.jit
def draw_path(model: Model, keys: Array, us: Array, z0: Vector) -> tuple[Array, Array]:
    """Draw random states and observations that follow state z0, and return both.

    Args:
        model: Dynamics and likelihood.
        keys: One JAX random key for each bin.
        us: One input for each bin, (bins, inputs).
        z0: State before the first bin, (latents,).
    """
    dynamics = model.dynamics

    def body(z: Vector, inputs: tuple[Key, Input]) -> tuple[Vector, tuple[Array, Array]]:
        key, u = inputs
        state_key, y_key = jax.random.split(key)
        z = dynamics.family.sample(dynamics.transition(z, u), state_key, 1)[0]
        return z, (z, model.likelihood.sample(z, y_key))

    return jax.lax.scan(body, z0, (keys, us))[1]


def _standard(family: Family) -> Belief:
    """Return the default prior of a family: for Gaussian families, mean 0 and variance 1."""
    if isinstance(family, LowRankGaussianFamily):
        ones = jnp.ones(family.dim)
        return LowRankBelief(0 * ones, ones, jnp.zeros((family.dim, family.rank)))
    if isinstance(family, GaussianFamily | DiagonalGaussianFamily):
        return family.from_moments(jnp.zeros(family.dim), jnp.eye(family.dim))
    return family.from_nat(family.from_unconstrained(jnp.zeros(family.num_raw)))


def _check_family(family: Family, dynamics: Dynamics) -> None:
    native = dynamics.family
    stand_in = type(native) is GaussianFamily and type(family) in (
        DiagonalGaussianFamily,
        LowRankGaussianFamily,
    )
    have, want = (x.parts if isinstance(x, ProductFamily) else (x,) for x in (family, native))
    remedy, product = "leave family out", isinstance(native, ProductFamily)
    if list(map(type, have)) != list(map(type, want)) and not stand_in:
        kinds, wanted = (" and ".join(type(x).__name__ for x in parts) for parts in (have, want))
        either = "" if product else f", or use {type(native).__name__}({native.dim})"
        raise InputError(f"{kinds} beliefs for {wanted} dynamics", "family", remedy + either)
    if [part.dim for part in have] != [part.dim for part in want]:
        sizes, wanted = (" and ".join(str(x.dim) for x in parts) for parts in (have, want))
        raise InputError(
            f"family of {sizes} dimensions for dynamics of {wanted}",
            "family",
            remedy if product else f"use {type(have[0]).__name__}({native.dim})",
        )


def _check_prior(family: Family, prior: Belief) -> Belief:
    shapes = jax.eval_shape(lambda: _standard(family))
    want, have = jax.tree.structure(shapes), jax.tree.structure(prior)
    sizes = [x.shape for x in jax.tree.leaves(shapes)]
    if want != have or sizes != [jnp.shape(x) for x in jax.tree.leaves(prior)]:
        raise InputError(
            f"prior is no {type(family).__name__} belief over {family.dim} dimensions",
            "prior",
            "make it with family.from_moments(mean, cov)",
        )
    if isinstance(prior, GaussianBelief):
        positive_root(np.asarray(prior.cov), "prior.cov")
    if not bool(family.valid(prior)):
        raise InputError(
            "prior is not finite or outside its family",
            "prior",
            "check mean and covariance before family.from_moments(mean, cov)",
        )
    dtype = jnp.result_type(float)
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), prior)

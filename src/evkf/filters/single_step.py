"""What methods share that skip the prediction and climb the single-step bound $M_t$.

$M_t = E_q[\\log p(y_t|z_t)] + E_q E_{q_{t-1}}[\\log p(z_t|z_{t-1})] + H(q)$, with
$z_{t-1} \\sim q_{t-1}$ independent of $z_t \\sim q$. Paper: section:cvkf:single_step.
"""

import math

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey
from jaxtyping import Array, Bool, Float, PyTree

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.families import ContinuousBernoulli, DiagonalGaussian, Family
from evkf.families.base import MAX_TENSOR_DIM
from evkf.filters.base import Info
from evkf.filters.predict import Prediction, predict
from evkf.model import Model
from evkf.numerics import tree_where
from evkf.types import Belief, Count, Input, Key, Mask, Observation, Scalar, Status, Vector

PARTS = ("dynamics", "noise", "readout")
"""The map $f_\\theta$; its noise Q; the readout C and b."""

UNITS = {"dt", "low", "high"}
"""Numbers of dynamics that no gradient moves: units, and where states have been."""

MAX_STD = 1e4


def check_family(family: Family, where: str) -> None:
    """Refuse beliefs that the method is not written for."""
    if not isinstance(family, DiagonalGaussian | ContinuousBernoulli):
        raise InputError(
            f"{type(family).__name__} beliefs",
            where,
            f"pass Model(..., family=DiagonalGaussian({family.dim})), or use dynamics of "
            "continuous Bernoulli states",
        )


def check_parts(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what cannot be learned."""
    if any(part not in PARTS for part in parts):
        raise InputError(f"parts {parts}", "parts", f"choose among {PARTS}")
    return tuple(parts)


def learned(model: Model, parts: tuple[str, ...]) -> PyTree:
    """True for every number of the model that gradients move."""

    def part_of(path: tuple) -> str | None:
        names = [key.name for key in path if isinstance(key, GetAttrKey)]
        if names[0] == "dynamics" and names[-1] not in UNITS:
            return "noise" if "noise" in names else "dynamics"
        return "readout" if names[0] == "likelihood" and names[-1] in ("C", "b") else None

    return jax.tree_util.tree_map_with_path(lambda path, _: part_of(path) in parts, model)


def read_bin(
    model: Model, y: Observation, mask: Mask | None, key: Key | None, u: Input | None
) -> tuple[Observation, Mask, Key, Input]:
    """Check what a step was given."""
    y, channels, size = jnp.asarray(y), model.likelihood.num_channels, model.dynamics.num_inputs
    mask = jnp.ones(channels, bool) if mask is None else jnp.asarray(mask)
    u = jnp.zeros(0) if u is None else jnp.asarray(u)
    for name, array, length in (("y", y, channels), ("mask", mask, channels), ("u", u, size)):
        if array.shape != (length,):
            raise InputError(f"{name} of shape {array.shape}", name, f"pass shape ({length},)")
    if jnp.issubdtype(y.dtype, jnp.complexfloating):
        raise InputError(f"observation of type {y.dtype}", "y", "pass real numbers")
    if mask.dtype != bool:
        raise InputError(f"mask of type {mask.dtype}", "mask", "pass booleans, True = observed")
    if key is None:
        raise InputError("no key", "key", "pass a key: this filter samples")
    dtype = jax.tree.leaves(model.prior)[0].dtype
    return jnp.where(mask, y, 0).astype(dtype), mask, key, u.astype(dtype)


def to_free(family: Family, belief: Belief) -> Float[Array, "R L"]:
    """A belief in numbers that may take any value: $(m, \\log s)$, or $\\text{arsinh} \\lambda$.

    The inverse hyperbolic sine is the logarithm of large parameters, which a continuous Bernoulli
    has wherever it saturates, and smooth through zero.
    """
    if isinstance(family, ContinuousBernoulli):
        return jnp.arcsinh(belief.T)
    return jnp.stack([family.mean(belief), 0.5 * jnp.log(family.var(belief))])


def from_free(family: Family, free: Float[Array, "R L"]) -> Belief:
    """The belief with these free numbers."""
    if isinstance(family, ContinuousBernoulli):
        return jnp.sinh(free.T)
    assert isinstance(family, DiagonalGaussian)
    return family.each_from_moments(free[0], jnp.exp(2 * free[1]))


def conditional(model: Model, z: Vector, u: Input) -> PyTree:
    """What `log_conditional` needs to know of $p(z_t|z_{t-1} = z)$."""
    dynamics = model.dynamics
    return dynamics.mean(z, u) if isinstance(dynamics, GaussianDynamics) else model.transition(z, u)


def log_conditional(model: Model, given: PyTree, z: Vector) -> Scalar:
    """$\\log p(z_t = z|z_{t-1})$."""
    if not isinstance(model.dynamics, GaussianDynamics):
        return model.family.log_prob(given, z)
    noise = model.dynamics.noise
    white = noise.whiten(z - given)
    return -0.5 * (white @ white + len(z) * math.log(2 * math.pi)) - noise.log_det_root()


def averaged(model: Model, belief: Belief, u: Input, key: Key, num_samples: int) -> Prediction:
    """The maximiser of $M_t$ where nothing is observed: the mean of the natural parameters."""
    can_tensor = isinstance(model.family, DiagonalGaussian) or model.family.dim <= MAX_TENSOR_DIM
    rule = "cubature" if can_tensor else "monte_carlo"
    return predict(model, belief, u, key, rule, num_samples, False, MAX_STD)


def settle(
    prediction: Prediction,
    belief: Belief,
    bound: Scalar,
    sound: Bool[Array, ""],
    mask: Mask,
    evaluations: Count | int,
) -> tuple[Belief, Info]:
    """The update if it is sound and something was seen, else the prediction."""
    seen = jnp.any(mask)
    keep = sound & seen
    elbo = jnp.where(keep, bound, jnp.where(seen, jnp.nan, 0)).astype(bound.dtype)
    fell = (seen & ~sound) | prediction.failed
    status = jnp.where(fell, int(Status.FELL_BACK), 0)
    status = status + jnp.where(prediction.capped & ~keep, int(Status.CAPPED), 0)
    unknown = jnp.full((), jnp.nan, elbo.dtype)
    info = Info(elbo, elbo, unknown, jnp.asarray(evaluations, jnp.int32), unknown, status)
    return tree_where(keep, belief, prediction.belief), info


def finite(*trees: PyTree) -> Bool[Array, ""]:
    """Whether every number is."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(trees)]))

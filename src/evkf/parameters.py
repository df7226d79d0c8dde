"""Learned parameters of a model, and the parts that they belong to.

A part is a group of parameters that a user can freeze (hold constant) or thaw (learn again).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey
from jaxtyping import Array, Bool, Float, PyTree

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.families import GaussianBelief, GaussianFamily
from evkf.model import Model
from evkf.numerics.covariance import FullCovariance
from evkf.numerics.linalg import cholesky, tree_where
from evkf.types import Belief, Vector

PARTS = ("dynamics", "noise", "readout", "observation", "prior")
r"""Names of the parts: "dynamics" is the map $f_\theta$, "noise" its noise Q, "readout" the
weights C and offsets b, "observation" the other parameters of the likelihood (dispersion, noise,
scale), and "prior" the belief about the initial state."""

FIXED = {"bin_width", "dt", "df", "low", "high"}
"""Names of numbers that are never learned: time units, the degrees of freedom of a Student-t, and
the box of visited states."""


MOST_LOG_DISPERSION = 7.0
"""Largest logarithm of the dispersion of a negative binomial. At larger values the distribution is
nearly Poisson, and the likelihood hardly changes."""


class FreePrior(eqx.Module):
    """A Gaussian prior, stored as unconstrained numbers."""

    mean: Vector
    cov: FullCovariance


class Free(eqx.Module):
    """A model in which every learned number may take any real value.

    Attributes:
        model: The model. If the prior is learned, its own prior is not used.
        prior: The learned prior; None if the prior is not learned.
    """

    model: Model
    prior: FreePrior | None

    def build(self) -> Model:
        """Return an ordinary `Model` that has the present parameters."""
        if self.prior is None:
            return self.model
        belief = GaussianBelief(self.prior.mean, self.prior.cov.matrix())
        return eqx.tree_at(lambda m: m.prior, self.model, belief)


def free(model: Model, parts: tuple[str, ...]) -> Free:
    """Return a model in a form that gradient steps can learn.

    Raise InputError if `parts` is empty or has unknown names, or if "prior" is to be learned and
    the beliefs are not Gaussian with full covariance.

    Args:
        model: The model to learn.
        parts: Names of the parts to learn, from `PARTS`.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts:
        raise InputError(f"parts {parts}", "parts", f"choose one or more of {PARTS}")
    if "prior" not in parts:
        return Free(model, None)
    if not isinstance(model.family, GaussianFamily):
        raise InputError(
            f"a learned initial state in the family {type(model.family).__name__}",
            "parts",
            "leave 'prior' out: initial states are learned for Gaussian beliefs",
        )
    mean, cov = model.prior
    root = cholesky(cov)
    lower = jnp.tril(root, -1)
    return Free(model, FreePrior(mean, FullCovariance(jnp.log(jnp.diagonal(root)), lower)))


def part_of(path: tuple[Any, ...]) -> str | None:
    """Return the part that an array of `Free` belongs to, given its tree path; None if fixed."""
    names = [key.name for key in path if isinstance(key, GetAttrKey)]
    if names[0] == "prior":
        return "prior"
    if names[-1] in FIXED or names[1] in ("prior", "family"):
        return None
    if names[1] == "dynamics":
        return "noise" if "noise" in names else "dynamics"
    return "readout" if names[-1] in ("C", "b") else "observation"


def parts_mask(tree: Free, parts: tuple[str, ...]) -> PyTree:
    """Return a tree of the same structure, with True for arrays of the named parts, else False."""
    return jax.tree_util.tree_map_with_path(lambda path, _: part_of(path) in parts, tree)


def split(tree: Free, parts: tuple[str, ...]) -> tuple[Free, Free]:
    """Return two trees: the named parts, and all other arrays; `equinox.combine` joins them."""
    return eqx.partition(tree, parts_mask(tree, parts))


class Thawed(NamedTuple):
    """Flags, one for each part: True if learning changes the part now, False if it is frozen."""

    dynamics: Bool[Array, ""]
    noise: Bool[Array, ""]
    readout: Bool[Array, ""]
    observation: Bool[Array, ""]
    prior: Bool[Array, ""]


def thawed_vector(tree: Free, thawed: Thawed) -> Float[Array, " D"]:
    """Return 1 for each learned number of a thawed part, else 0, in the order of `ravel_pytree`."""

    def spread(path: tuple[Any, ...], leaf: Array) -> Array:
        part = part_of(path)
        assert part is not None
        return jnp.full(leaf.size, getattr(thawed, part), leaf.dtype)

    return jnp.concatenate(jax.tree.leaves(jax.tree_util.tree_map_with_path(spread, tree)))


def bound_noise(tree: Free, smallest: float) -> Free:
    """Return the model with noise and dispersion clipped to their limits.

    Standard deviations (of noise and prior, the diagonal of their Cholesky factors) are at least
    `smallest`. Log-dispersions are within `MOST_LOG_DISPERSION` of zero.
    """

    def raise_floor(path: tuple[Any, ...], leaf: Array) -> Array:
        names = [key.name for key in path if isinstance(key, GetAttrKey)]
        bounded = part_of(path) in ("noise", "observation", "prior")
        if bounded and names[-1] in ("log_std", "log_diagonal", "log_scale"):
            return jnp.maximum(leaf, jnp.log(smallest))
        if names[-1] == "log_dispersion":
            return jnp.clip(leaf, -MOST_LOG_DISPERSION, MOST_LOG_DISPERSION)
        return leaf

    return jax.tree_util.tree_map_with_path(raise_floor, tree)


def visit(model: Model, belief: Belief, usual: Bool[Array, ""]) -> Model:
    """Return the model after its dynamics recorded a state as visited (see `ResidualMLP`).

    Dynamics that record no visited states are returned unchanged.

    Args:
        model: The model that the belief comes from.
        belief: The belief about the state of this bin.
        usual: True if the bin was observed and the update did not fail. If False, nothing is
            recorded.
    """
    dynamics, family = model.dynamics, model.family
    if not isinstance(dynamics, GaussianDynamics):
        return model
    there = dynamics.visited(family.mean(belief), jnp.sqrt(family.var(belief)))
    return eqx.tree_at(lambda m: m.dynamics, model, tree_where(usual, there, dynamics))

"""Which numbers of a model are learned, and under which name a user can freeze them."""

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
"""The map $f_\\theta$; its noise Q; the readout C and b; what else the likelihood has (dispersion,
noise, scale); the initial state."""

FIXED = {"bin_width", "dt", "df", "low", "high"}
"""Leaves that no gradient moves: units, the shape of a Student-t, where states have been."""


MOST_LOG_DISPERSION = 7.0
"""A negative binomial with more is a Poisson, and its likelihood flat."""


class FreePrior(eqx.Module):
    """A Gaussian initial state in unconstrained parameters."""

    mean: Vector
    cov: FullCovariance


class Free(eqx.Module):
    """A model in parameters that may take any value."""

    model: Model
    prior: FreePrior | None

    def build(self) -> Model:
        """The model itself."""
        if self.prior is None:
            return self.model
        belief = GaussianBelief(self.prior.mean, self.prior.cov.matrix())
        return eqx.tree_at(lambda m: m.prior, self.model, belief)


def free(model: Model, parts: tuple[str, ...]) -> Free:
    """Read a model whose named parts are to be learned."""
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
    """The part a leaf of `Free` belongs to, by the names on the way to it."""
    names = [key.name for key in path if isinstance(key, GetAttrKey)]
    if names[0] == "prior":
        return "prior"
    if names[-1] in FIXED or names[1] in ("prior", "family"):
        return None
    if names[1] == "dynamics":
        return "noise" if "noise" in names else "dynamics"
    return "readout" if names[-1] in ("C", "b") else "observation"


def labels(tree: Free) -> PyTree:
    """The part of every leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, _: part_of(path), tree)


def marks(tree: Free, parts: tuple[str, ...]) -> PyTree:
    """True for every leaf that belongs to one of the parts."""
    return jax.tree.map(lambda part: part in parts, labels(tree), is_leaf=lambda x: x is None)


def split(tree: Free, parts: tuple[str, ...]) -> tuple[Free, Free]:
    """Separate what is learned from what is not; `equinox.combine` puts them together again."""
    return eqx.partition(tree, marks(tree, parts))


class Thawed(NamedTuple):
    """Which parts move now; the others keep their values."""

    dynamics: Bool[Array, ""]
    noise: Bool[Array, ""]
    readout: Bool[Array, ""]
    observation: Bool[Array, ""]
    prior: Bool[Array, ""]


def thawed_vector(tree: Free, thawed: Thawed) -> Float[Array, " D"]:
    """One or zero for every learned number, in the order of `ravel_pytree`."""

    def spread(path: tuple[Any, ...], leaf: Array) -> Array:
        part = part_of(path)
        assert part is not None
        return jnp.full(leaf.size, getattr(thawed, part), leaf.dtype)

    return jnp.concatenate(jax.tree.leaves(jax.tree_util.tree_map_with_path(spread, tree)))


def bound_noise(tree: Free, smallest: float) -> Free:
    """Keep every noise from collapsing (no standard deviation under a floor), and dispersions
    where they make a difference.
    """

    def raise_floor(path: tuple[Any, ...], leaf: Array) -> Array:
        names = [key.name for key in path if isinstance(key, GetAttrKey)]
        held = part_of(path) in ("noise", "observation", "prior")
        if held and names[-1] in ("log_std", "log_diagonal", "log_scale"):
            return jnp.maximum(leaf, jnp.log(smallest))
        if names[-1] == "log_dispersion":
            return jnp.clip(leaf, -MOST_LOG_DISPERSION, MOST_LOG_DISPERSION)
        return leaf

    return jax.tree_util.tree_map_with_path(raise_floor, tree)


def visit(model: Model, belief: Belief, usual: Bool[Array, ""]) -> Model:
    """Return the model with a state marked as visited, where the dynamics keep such marks.

    Args:
        model: The model.
        belief: The belief about the state.
        usual: True if the bin was observed and the update did not fail; else nothing is recorded.
    """
    dynamics, family = model.dynamics, model.family
    if not isinstance(dynamics, GaussianDynamics):
        return model
    there = dynamics.visited(family.mean(belief), jnp.sqrt(family.var(belief)))
    return eqx.tree_at(lambda m: m.dynamics, model, tree_where(usual, there, dynamics))

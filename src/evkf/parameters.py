"""Learned parameters of a model: their parts, by which a user freezes and thaws them."""

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
r"""The map $f_\theta$; its noise Q; the readout C and b; other parameters of the
likelihood (dispersion, noise, scale); the initial state."""

FIXED = {"bin_width", "dt", "df", "low", "high"}
"""Leaves that are never learned: units, the shape of a Student-t, the box of visited states."""


MOST_LOG_DISPERSION = 7.0
"""Largest log-dispersion; above it a negative binomial is a Poisson, and its likelihood flat."""


class FreePrior(eqx.Module):
    """A Gaussian prior in unconstrained parameters."""

    mean: Vector
    cov: FullCovariance


class Free(eqx.Module):
    """A model in unconstrained parameters."""

    model: Model
    prior: FreePrior | None

    def build(self) -> Model:
        """Return the model."""
        if self.prior is None:
            return self.model
        belief = GaussianBelief(self.prior.mean, self.prior.cov.matrix())
        return eqx.tree_at(lambda m: m.prior, self.model, belief)


def free(model: Model, parts: tuple[str, ...]) -> Free:
    """Return a model in unconstrained parameters, of which the named parts are learned."""
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
    """Return the part that a leaf of `Free` belongs to, by its path; None if it is fixed."""
    names = [key.name for key in path if isinstance(key, GetAttrKey)]
    if names[0] == "prior":
        return "prior"
    if names[-1] in FIXED or names[1] in ("prior", "family"):
        return None
    if names[1] == "dynamics":
        return "noise" if "noise" in names else "dynamics"
    return "readout" if names[-1] in ("C", "b") else "observation"


def parts_mask(tree: Free, parts: tuple[str, ...]) -> PyTree:
    """Tree that is True at every leaf of the parts."""
    return jax.tree_util.tree_map_with_path(lambda path, _: part_of(path) in parts, tree)


def split(tree: Free, parts: tuple[str, ...]) -> tuple[Free, Free]:
    """Separate learned parts from all others; `equinox.combine` joins them again."""
    return eqx.partition(tree, parts_mask(tree, parts))


class Thawed(NamedTuple):
    """Flags of the parts that learning moves now; the others keep their values."""

    dynamics: Bool[Array, ""]
    noise: Bool[Array, ""]
    readout: Bool[Array, ""]
    observation: Bool[Array, ""]
    prior: Bool[Array, ""]


def thawed_vector(tree: Free, thawed: Thawed) -> Float[Array, " D"]:
    """Return one for every learned number that moves, else zero, in the order of `ravel_pytree`."""

    def spread(path: tuple[Any, ...], leaf: Array) -> Array:
        part = part_of(path)
        assert part is not None
        return jnp.full(leaf.size, getattr(thawed, part), leaf.dtype)

    return jnp.concatenate(jax.tree.leaves(jax.tree_util.tree_map_with_path(spread, tree)))


def bound_noise(tree: Free, smallest: float) -> Free:
    """Keep noise above its smallest standard deviation, and dispersions within their bounds."""

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

"""The families' boundary: what they refuse, how they batch, and that the two Gaussians agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from evkf.errors import InputError
from evkf.families import BetaFamily, DiagonalGaussianFamily, GaussianBelief, GaussianFamily
from tests.families.cases import (
    DTYPES,
    SIZE,
    TWO_PARAMETER,
    UNIVARIATE,
    close,
    cubes,
    jitted,
    member,
    properties,
)
from tests.quick import quick_compilation  # noqa: F401

every = pytest.mark.parametrize("cls", UNIVARIATE)
both = pytest.mark.parametrize("dtype", DTYPES)


@every
@both
@properties
@given(cube=cubes(2 * SIZE))
def test_from_unconstrained_is_valid(cls, dtype, cube):
    family = cls(SIZE)
    raw = (100 * cube[: family.num_raw] - 50).astype(dtype)
    nat = jitted(family, "from_unconstrained")(raw)
    assert nat.shape == (SIZE, family.num_params)
    assert nat.dtype == dtype
    assert jitted(family, "valid")(nat)
    assert np.all(np.isfinite(jitted(family, "each_entropy")(nat)))


def test_gaussians_agree():
    family, full = DiagonalGaussianFamily(2), GaussianFamily(2)
    beliefs = [
        (jnp.array([1.0, -2.0]), jnp.array([0.3, 2.0])),
        (jnp.array([0.5, 1.0]), jnp.ones(2)),
    ]
    q, p = (family.from_moments(m, jnp.diag(v)) for m, v in beliefs)
    full_q, full_p = (GaussianBelief(m, jnp.diag(v)) for m, v in beliefs)
    z = jnp.array([0.1, 0.2])

    @jax.jit
    def values(family, q, p):
        nat = family.nat(q)
        mean = jax.grad(family.log_partition)(nat)
        mean = mean.T if isinstance(nat, jax.Array) else (mean[0], jnp.diagonal(mean[1]))
        return (
            family.kl(q, p),
            family.entropy(q),
            family.log_prob(q, z),
            family.log_partition(nat),
            family.nodes(q).points,
            *mean,
        )

    for x, y in zip(values(family, q, p), values(full, full_q, full_p), strict=True):
        close(x, y, 1e-13, 1)


@every
def test_refusals(cls):
    for dim in (0, -1):
        with pytest.raises(InputError, match=f"dim = {dim}"):
            cls(dim)
    if cls is not DiagonalGaussianFamily:
        with pytest.raises(InputError, match="monte_carlo"):
            cls(11).nodes(member(cls, np.full((11, 2), 0.5)))
    assert cls(11).correctable == (cls in TWO_PARAMETER)


@every
def test_valid_refuses(cls):
    family, good = cls(SIZE), member(cls, np.full((SIZE, 2), 0.5))
    assert jitted(family, "valid")(good)
    edge = [(0, 1, -1.0 if cls is BetaFamily else 0.0)] if cls in TWO_PARAMETER else []
    for i, j, value in [(1, 0, np.nan), (0, -1, np.inf), *edge]:
        bad = good.copy()
        bad[i, j] = value
        assert not jitted(family, "valid")(bad)


@every
def test_vmap(cls):
    """A batch of one-dimensional beliefs is a belief of many dimensions."""
    one, many = cls(1), cls(SIZE)
    nat = member(cls, np.random.default_rng(0).random((SIZE, 2)), wide=False)
    mean = jitted(many, "to_mean")(nat)
    batched = jax.jit(jax.vmap(one.to_nat))(mean[:, None])
    close(batched[:, 0], jitted(many, "to_nat")(mean), 1e-12, 1e-12)

"""Identities every family obeys, over a thousand random members each, in both precisions."""

import jax
import numpy as np
import pytest
from hypothesis import given

from evkf.families import (
    BernoulliFamily,
    BetaFamily,
    ContinuousBernoulliFamily,
    GammaFamily,
)
from tests.families.cases import (
    DTYPES,
    SIZE,
    TWO_PARAMETER,
    UNIVARIATE,
    along,
    close,
    cubes,
    densities,
    fill,
    fisher,
    gradient,
    inverse_fisher,
    jitted,
    member,
    properties,
    rule,
)
from tests.quick import quick_compilation  # noqa: F401

every = pytest.mark.parametrize("cls", UNIVARIATE)
both = pytest.mark.parametrize("dtype", DTYPES)


def eps(dtype) -> float:
    return float(np.finfo(dtype).eps)


def magnitude(matrix, vector) -> np.ndarray:
    """|M| |v| per dimension: how far rounding of v can move M v."""
    return np.einsum("lij,lj->li", np.abs(np.asarray(matrix)), np.abs(np.asarray(vector)))


@every
@both
@properties
@given(cube=cubes(SIZE, 2))
def test_gradient_of_log_partition_is_mean(cls, dtype, cube):
    family, nat = cls(SIZE), member(cls, cube, dtype)
    mean = jitted(family, "to_mean")(nat)
    assert mean.dtype == dtype
    # The leading terms of the Gamma's and Gaussian's A cancel in its derivative, absolutely.
    close(gradient(family, "log_partition")(nat), mean, 20 * eps(dtype), scale=1)


@every
@properties
@given(cube=cubes(SIZE, 2))
def test_to_nat_inverts_to_mean(cls, cube):
    family, nat = cls(SIZE), member(cls, cube)
    if cls is BernoulliFamily:
        nat = np.clip(nat, -30, 15)  # a mean of 1 - 1e-13 no longer tells its logit
    mean = jitted(family, "to_mean")(nat)
    back = jitted(family, "to_nat")(mean)
    # The mean parameters are rounded; F^-1 says what that means for the natural ones.
    blur = magnitude(inverse_fisher(family, nat), np.abs(mean) + (cls is GammaFamily))
    close(back - nat, 0 * nat, 10 * eps(np.float64), scale=blur + np.abs(nat) + 1)


@every
@both
@properties
@given(cube=cubes(SIZE, 2))
def test_to_mean_inverts_to_nat(cls, dtype, cube):
    family, mean = cls(SIZE), jitted(cls(SIZE), "to_mean")(member(cls, cube, dtype))
    nat = jitted(family, "to_nat")(mean)
    assert nat.dtype == dtype
    assert jitted(family, "valid")(nat)
    blur = magnitude(fisher(family, nat), nat)
    close(jitted(family, "to_mean")(nat), mean, 4 * eps(dtype), scale=1 + blur)


@every
@properties
@given(cube=cubes(SIZE, 2))
def test_to_nat_differentiates_to_inverse_fisher(cls, cube):
    family, nat = cls(SIZE), member(cls, cube, wide=False)
    mean = jitted(family, "to_mean")(nat)
    direction = np.ones_like(mean)
    change = along(family, cls.to_nat)(mean, direction)
    matrix = fisher(family, jitted(family, "to_nat")(mean))
    close(np.einsum("lij,lj->li", matrix, change), direction, 1e-9, magnitude(matrix, change))


@every
@both
@properties
@given(cube=cubes(SIZE, 2))
def test_derivative_of_to_mean_is_the_hessian(cls, dtype, cube):
    family, nat = cls(SIZE), member(cls, cube, dtype)
    matrix = fisher(family, nat)
    for k in range(family.num_params):
        direction = np.broadcast_to(np.eye(family.num_params, dtype=dtype)[k], nat.shape)
        column = along(family, _gradient_of_log_partition)(nat, direction)
        close(column, matrix[:, :, k], 50 * eps(dtype), scale=eps(dtype) ** 2)


def _gradient_of_log_partition(family, nat):
    return jax.grad(family.log_partition)(nat)


@every
@both
@properties
@given(cube=cubes(SIZE, 2), grad=cubes(SIZE, 2))
def test_natural_gradient_solves_the_fisher(cls, dtype, cube, grad):
    family, nat = cls(SIZE), member(cls, cube, dtype)
    grad = (grad[:, : family.num_params] - 0.5).astype(dtype)
    solved = jitted(family, "natural_gradient")(nat, grad)
    assert solved.dtype == dtype
    matrix = np.asarray(fisher(family, nat), np.float64)
    again = np.einsum("lij,lj->li", matrix, np.asarray(solved, np.float64))
    close(again, grad, 50 * eps(dtype), scale=magnitude(matrix, solved))


@every
@both
@properties
@given(cube=cubes(SIZE, 2), other=cubes(SIZE, 2))
def test_kl_is_a_divergence(cls, dtype, cube, other):
    family = cls(SIZE)
    nat, other = member(cls, cube, dtype), member(cls, other, dtype)
    kl = jitted(family, "each_kl")
    assert np.all(np.asarray(kl(nat, nat)) == 0)
    assert np.all(np.isfinite(kl(nat, other)))
    assert np.all(np.asarray(kl(nat, other)) >= 0)
    nearby = nat + (other - nat) * dtype(1e-5)
    assert np.all(np.asarray(kl(nat, nearby)) >= 0)


@every
@both
@properties
@given(cube=cubes(SIZE, 2), toward=cubes(SIZE, 2))
def test_gradients_of_kl_and_entropy(cls, dtype, cube, toward):
    """d KL(q, p) = F(q) (q - p) dq and (mu_p - mu_q) dp; d H = -F(q) q dq."""
    family = cls(SIZE)
    nat, other = member(cls, cube, dtype), member(cls, toward, dtype)
    matrix = np.asarray(fisher(family, nat), np.float64)
    step = np.asarray(nat, np.float64) - np.asarray(other, np.float64)
    by_q, by_p = gradient(family, "kl")(nat, other)
    close(by_q, np.einsum("lij,lj->li", matrix, step), 1000 * eps(dtype), magnitude(matrix, step))
    means = [np.asarray(jitted(family, "to_mean")(x)) for x in (nat, other)]
    close(by_p, means[1] - means[0], 1000 * eps(dtype), np.abs(means[0]) + np.abs(means[1]))
    want = -np.einsum("lij,lj->li", matrix, np.asarray(nat, np.float64))
    close(gradient(family, "entropy")(nat), want, 1000 * eps(dtype), magnitude(matrix, nat) + 1)


@every
@both
@properties
@given(cube=cubes(SIZE, 2))
def test_gradients_are_finite_everywhere(cls, dtype, cube):
    family, nat = cls(SIZE), member(cls, cube, dtype)
    other = nat[::-1]
    assert np.all(np.isfinite(gradient(family, "entropy")(nat)))
    assert np.all(np.isfinite(gradient(family, "kl")(nat, other)))
    z = jitted(family, "inside")(jitted(family, "each_moments")(nat)[0])
    assert np.all(np.isfinite(gradient(family, "log_prob")(nat, z)))


@every
@properties
@given(cube=cubes(SIZE, 2), other=cubes(SIZE, 2))
def test_integrals(cls, cube, other):
    """Density, entropy, divergence and mean parameters are what integration says."""
    family = cls(SIZE)
    nat, other = member(cls, cube, wide=False), member(cls, other, wide=False)
    points, log_weights = rule(cls, nat)
    (log_q, stats), (log_p, _) = (densities(family)(x, points) for x in (nat, other))
    mass = np.exp(np.asarray(log_q) + log_weights)
    keep = mass > 0
    close(mass.sum(0), 1, 1e-11)

    def expect(values):
        return np.sum(mass * np.where(keep, values, 0), 0)

    close(expect(-log_q), jitted(family, "each_entropy")(nat), 1e-10, scale=1)
    close(expect(log_q - log_p), jitted(family, "each_kl")(nat, other), 1e-9, scale=1e-2)
    close(
        np.stack([expect(s) for s in np.moveaxis(stats, -1, 0)], -1),
        jitted(family, "to_mean")(nat),
        1e-10,
        1,
    )
    mean, var, skew = jitted(family, "each_moments")(nat)
    close(expect(points), mean, 1e-10, scale=1e-3)
    close(expect((points - np.asarray(mean)) ** 2), var, 1e-9)
    close(expect(((points - np.asarray(mean)) / np.sqrt(var)) ** 3), skew, 1e-8, scale=1)


@every
@properties
@given(cube=cubes(SIZE, 2), at=cubes(SIZE))
def test_log_prob_is_the_exponential_form(cls, cube, at):
    family, nat = cls(SIZE), member(cls, cube, wide=False)
    mean, var, _ = jitted(family, "each_moments")(nat)
    z = jitted(family, "inside")(mean + np.sqrt(var) * (6 * at - 3))
    z = np.where(z < 1e-6, 1e-6, z) if cls in (GammaFamily, BetaFamily) else z
    z = np.round(at) if cls is BernoulliFamily else z
    products, partition = (
        nat * jitted(family, "stats")(z),
        jitted(family, "each_log_partition")(nat),
    )
    linear = np.sum(products, -1) - partition
    scale = np.sum(np.abs(products), -1) + np.abs(partition) + 1
    log_prob = jitted(family, "each_log_prob")(nat, z)
    close(log_prob, linear + family.log_base / SIZE, 1e-13, scale=scale)
    close(np.sum(log_prob), np.sum(linear) + family.log_base, 1e-12, scale=np.sum(scale))


@every
@both
@properties
@given(cube=cubes(3, 2))
def test_nodes_reproduce_moments_inside_the_support(cls, dtype, cube):
    family, nat = cls(3), member(cls, cube, dtype)
    points, weights = (np.asarray(x, np.float64) for x in jitted(family, "nodes")(nat))
    assert jitted(family, "nodes")(nat).points.dtype == dtype
    close(weights.sum(), 1, 10 * eps(dtype))
    low, high = cls.support
    if cls is BernoulliFamily:
        assert set(points.ravel()) == {0.0, 1.0}
    else:
        assert np.all((points > low) & (points < high))
    moments = jitted(family, "each_moments")(nat)
    mean, var = (np.asarray(x, np.float64) for x in moments[:2])
    # Points carry rounding of their own size, which is all that limits the variance.
    size = np.max(np.abs(points), 0) * eps(dtype)
    close(weights @ points, mean, 20 * eps(dtype), np.max(np.abs(points), 0))
    got = weights @ (points - mean) ** 2
    bound = 50 * eps(dtype) * var + 20 * size * np.sqrt(var) + 20 * size**2
    assert np.all(np.abs(got - var) <= bound)


@pytest.mark.parametrize("cls", TWO_PARAMETER)
@both
@properties
@given(cube=cubes(SIZE, 2))
def test_from_moments_inverts_moments(cls, dtype, cube):
    family, nat = cls(SIZE), member(cls, cube, dtype, wide=False)
    mean, var, _ = (np.asarray(x) for x in jitted(family, "each_moments")(nat))
    back = jitted(family, "from_moments")(mean, np.diag(var))
    assert back.dtype == dtype
    # Only the Beta's 1 - m and m (1 - m) / v - 1 lose digits.
    loss = 1 / (1 - mean) + var / (mean * (1 - mean) - var) if cls is BetaFamily else 0 * mean
    close(back, nat, 20 * eps(dtype), scale=(1 + np.abs(nat).max(-1) * (1 + loss))[:, None])


@pytest.mark.parametrize("cls", [ContinuousBernoulliFamily, BernoulliFamily])
@properties
@given(mean=cubes(SIZE))
def test_one_parameter_families_keep_the_mean(cls, mean):
    family = cls(SIZE)
    got, _, _ = jitted(family, "each_moments")(jitted(family, "from_moments")(mean, np.eye(SIZE)))
    close(got, mean, 1e-14, scale=2)


def test_from_moments_brings_the_rest_into_range():
    for dtype in DTYPES:
        beta, gamma, cov = BetaFamily(SIZE), GammaFamily(SIZE), 1e9 * np.eye(SIZE, dtype=dtype)
        belief = jitted(beta, "from_moments")(fill([0.5, 0.2, 1e-6, 1.0, 0.0], dtype), cov)
        assert jitted(beta, "valid")(belief)
        mean, var, _ = jitted(beta, "each_moments")(belief)
        assert np.all(var < 0.25)
        close(mean[:1], 0.5, 1e-6)
        belief = jitted(gamma, "from_moments")(fill([1.0, 0.0, -1.0], dtype), cov)
        assert jitted(gamma, "valid")(belief)
        for family in (beta, gamma):
            belief = jitted(family, "from_moments")(fill([0.5, 0.1], dtype), 0 * cov)
            assert jitted(family, "valid")(belief)

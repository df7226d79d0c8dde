"""Identities every family obeys, over a thousand random members each, in both precisions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from evkf.errors import InputError
from evkf.families import (
    Bernoulli,
    Beta,
    ContinuousBernoulli,
    DiagonalGaussian,
    Gamma,
    Gaussian,
    GaussianBelief,
    Product,
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
    gradient,
    inverse_fisher,
    jitted,
    member,
    product,
    properties,
    rule,
)

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
    if cls is Bernoulli:
        nat = jnp.clip(nat, -30, 15)  # a mean of 1 - 1e-13 no longer tells its logit
    mean = jitted(family, "to_mean")(nat)
    back = jitted(family, "to_nat")(mean)
    # The mean parameters are rounded; F^-1 says what that means for the natural ones.
    blur = magnitude(inverse_fisher(family)(nat), np.abs(mean) + (cls is Gamma))
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
    blur = magnitude(jitted(family, "each_fisher")(nat), nat)
    close(jitted(family, "to_mean")(nat), mean, 4 * eps(dtype), scale=1 + blur)


@every
@properties
@given(cube=cubes(SIZE, 2))
def test_to_nat_differentiates_to_inverse_fisher(cls, cube):
    family, nat = cls(SIZE), member(cls, cube, wide=False)
    mean = jitted(family, "to_mean")(nat)
    direction = jnp.ones_like(mean)
    change = along(family, cls.to_nat)(mean, direction)
    fisher = jitted(family, "each_fisher")(jitted(family, "to_nat")(mean))
    close(jnp.einsum("lij,lj->li", fisher, change), direction, 1e-9, magnitude(fisher, change))


@every
@both
@properties
@given(cube=cubes(SIZE, 2))
def test_fisher_is_the_hessian(cls, dtype, cube):
    family, nat = cls(SIZE), member(cls, cube, dtype)
    fisher = np.asarray(jitted(family, "each_fisher")(nat))
    for k in range(family.num_params):
        direction = jnp.zeros_like(nat).at[:, k].set(1)
        for function in (cls.to_mean, _gradient_of_log_partition):
            column = along(family, function)(nat, direction)
            close(column, fisher[:, :, k], 50 * eps(dtype), scale=eps(dtype) ** 2)


def _gradient_of_log_partition(family, nat):
    return jax.grad(family.log_partition)(nat)


@every
@both
@properties
@given(cube=cubes(SIZE, 2), grad=cubes(SIZE, 2))
def test_natural_gradient_solves_the_fisher(cls, dtype, cube, grad):
    family, nat = cls(SIZE), member(cls, cube, dtype)
    grad = jnp.asarray(grad[:, : family.num_params] - 0.5, dtype)
    solved = jitted(family, "natural_gradient")(nat, grad)
    assert solved.dtype == dtype
    fisher = np.asarray(jitted(family, "each_fisher")(nat), np.float64)
    again = np.einsum("lij,lj->li", fisher, np.asarray(solved, np.float64))
    close(again, grad, 50 * eps(dtype), scale=magnitude(fisher, solved))


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
    nat, other = member(cls, cube, dtype, wide=False), member(cls, toward, dtype, wide=False)
    fisher = np.asarray(jitted(family, "each_fisher")(nat), np.float64)
    step = np.asarray(nat, np.float64) - np.asarray(other, np.float64)
    by_q = gradient(family, "kl")(nat, other)
    close(by_q, np.einsum("lij,lj->li", fisher, step), 200 * eps(dtype), magnitude(fisher, step))
    by_p = gradient(family, "kl", 1)(nat, other)
    means = [np.asarray(jitted(family, "to_mean")(x)) for x in (nat, other)]
    close(by_p, means[1] - means[0], 200 * eps(dtype), np.abs(means[0]) + np.abs(means[1]))
    want = -np.einsum("lij,lj->li", fisher, np.asarray(nat, np.float64))
    close(gradient(family, "entropy")(nat), want, 200 * eps(dtype), magnitude(fisher, nat) + 1)


@every
@both
@properties
@given(cube=cubes(SIZE, 2))
def test_gradients_are_finite_everywhere(cls, dtype, cube):
    family, nat = cls(SIZE), member(cls, cube, dtype)
    other = nat[::-1]
    assert np.all(np.isfinite(gradient(family, "entropy")(nat)))
    assert np.all(np.isfinite(gradient(family, "kl")(nat, other)))
    z = family.inside(jitted(family, "mean")(nat))
    assert np.all(np.isfinite(gradient(family, "log_prob")(nat, z)))


@every
@properties
@given(cube=cubes(SIZE, 2), other=cubes(SIZE, 2))
def test_integrals(cls, cube, other):
    """Density, entropy, divergence and mean parameters are what integration says."""
    family = cls(SIZE)
    nat, other = member(cls, cube, wide=False), member(cls, other, wide=False)
    points, log_weights = rule(cls, nat)
    log_q, log_p = (densities(family)(x, points) for x in (nat, other))
    mass = np.exp(np.asarray(log_q) + log_weights)
    keep = mass > 0
    close(mass.sum(0), 1, 1e-11)

    def expect(values):
        return np.sum(mass * np.where(keep, values, 0), 0)

    close(expect(-log_q), jitted(family, "each_entropy")(nat), 1e-10, scale=1)
    close(expect(log_q - log_p), jitted(family, "each_kl")(nat, other), 1e-9, scale=1e-2)
    stats = np.asarray(jax.vmap(family.stats)(points))
    close(
        np.stack([expect(s) for s in np.moveaxis(stats, -1, 0)], -1), family.to_mean(nat), 1e-10, 1
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
    z = family.inside(mean + jnp.sqrt(var) * (6 * at - 3))
    z = jnp.where(z < 1e-6, 1e-6, z) if cls in (Gamma, Beta) else z
    z = jnp.round(at) if cls is Bernoulli else z
    products, partition = nat * family.stats(z), jitted(family, "each_log_partition")(nat)
    linear = jnp.sum(products, -1) - partition
    scale = np.sum(np.abs(products), -1) + np.abs(partition) + 1
    log_prob = jitted(family, "each_log_prob")(nat, z)
    close(log_prob, linear + family.log_base / SIZE, 1e-13, scale=scale)
    close(jnp.sum(log_prob), jnp.sum(linear) + family.log_base, 1e-12, scale=np.sum(scale))


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
    if cls is Bernoulli:
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
    loss = 1 / (1 - mean) + var / (mean * (1 - mean) - var) if cls is Beta else 0 * mean
    close(back, nat, 20 * eps(dtype), scale=(1 + np.abs(nat).max(-1) * (1 + loss))[:, None])


@pytest.mark.parametrize("cls", [ContinuousBernoulli, Bernoulli])
@properties
@given(mean=cubes(SIZE))
def test_one_parameter_families_keep_the_mean(cls, mean):
    family, mean = cls(SIZE), jnp.asarray(mean)
    got = jitted(family, "mean")(jitted(family, "from_moments")(mean, jnp.eye(SIZE)))
    close(got, mean, 1e-14, scale=2)


def test_from_moments_brings_the_rest_into_range():
    for dtype in DTYPES:
        mean, var = jnp.array([0.5, 0.2, 1e-6, 1.0, 0.0], dtype), jnp.ones(5, dtype)
        beta = Beta(5)
        belief = beta.from_moments(mean, jnp.diag(var))
        assert beta.valid(belief)
        assert np.all(beta.var(belief) < 0.25)
        close(beta.mean(belief)[:1], mean[:1], 1e-6)
        gamma = Gamma(3)
        assert gamma.valid(
            gamma.from_moments(jnp.array([1.0, 0, -1], dtype), 1e9 * jnp.eye(3, dtype=dtype))
        )


@pytest.mark.parametrize("family", [*(cls(3) for cls in UNIVARIATE), Gaussian(3), product()])
@both
@properties
@given(cube=cubes(64))
def test_from_unconstrained_is_valid(family, dtype, cube):
    raw = jnp.asarray(100 * cube[: family.num_raw] - 50, dtype)
    nat = jitted(family, "from_unconstrained")(raw)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(nat))
    if isinstance(family, Gaussian):
        # Its precision may be too ill-conditioned for float32: valid means a root exists.
        assert np.all(np.isfinite(nat.quadratic))
    else:
        assert jitted(family, "valid")(nat)
        assert np.isfinite(jitted(family, "entropy")(nat))


def test_gaussians_agree():
    family, full = DiagonalGaussian(2), Gaussian(2)
    beliefs = [
        (jnp.array([1.0, -2.0]), jnp.array([0.3, 2.0])),
        (jnp.array([0.5, 1.0]), jnp.ones(2)),
    ]
    q, p = (family.from_moments(m, jnp.diag(v)) for m, v in beliefs)
    full_q, full_p = (GaussianBelief(m, jnp.diag(v)) for m, v in beliefs)
    z = jnp.array([0.1, 0.2])
    close(family.kl(q, p), full.kl(full_q, full_p), 1e-14)
    close(family.entropy(q), full.entropy(full_q), 1e-14)
    close(family.log_prob(q, z), full.log_prob(full_q, z), 1e-14)
    close(family.log_partition(q), full.log_partition(full.nat(full_q)), 1e-14)
    close(family.nodes(q).points, full.nodes(full_q).points, 1e-14, 1)
    first, second = jax.grad(full.log_partition)(full.nat(full_q))
    close(family.to_mean(q)[:, 0], first, 1e-13)
    close(family.to_mean(q)[:, 1], jnp.diagonal(second), 1e-13)


@every
def test_refusals(cls):
    for dim in (0, -1):
        with pytest.raises(InputError, match="latent dimensions"):
            cls(dim)
    if cls is not DiagonalGaussian:
        with pytest.raises(InputError, match="Monte-Carlo"):
            cls(11).nodes(member(cls, np.full((11, 2), 0.5)))
    assert cls(11).correctable == (cls in TWO_PARAMETER)


@every
def test_valid_refuses(cls):
    family, good = cls(2), member(cls, np.full((2, 2), 0.5))
    assert family.valid(good)
    assert not family.valid(good.at[1, 0].set(jnp.nan))
    assert not family.valid(good.at[0, -1].set(jnp.inf))
    if cls in TWO_PARAMETER:
        assert not family.valid(good.at[0, 1].set(-1.0 if cls is Beta else 0.0))


@every
def test_vmap_and_jit(cls):
    family = cls(2)
    nats = member(cls, np.random.default_rng(0).random((10, 2)), wide=False).reshape(5, 2, -1)
    means = jax.jit(jax.vmap(family.to_mean))(nats)
    for name, args in [("entropy", nats), ("to_nat", means), ("nodes", nats)]:
        batched = jax.jit(jax.vmap(getattr(family, name)))(args)
        for i in range(5):
            single = jitted(family, name)(args[i])
            jax.tree.map(lambda x, y, i=i: close(x[i], y, 1e-12, 1e-12), batched, single)


class TestProduct:
    def test_equals_its_parts(self):
        family = product()
        assert family.dim == 5
        assert family.num_raw == 2 * 2 + 1 + 2 + 2
        assert not family.correctable
        assert Product((Gamma(1), Beta(2))).correctable
        close(family.log_base, sum(part.log_base for part in family.parts), 0)

        @jax.jit
        def pairs(raw):
            """What the product gives, and what its parts give."""
            nat, other = family.from_unconstrained(raw), family.from_unconstrained(raw[::-1])
            z = family.mean(nat)
            blocks = [z[:2], z[2:3], z[3:4], z[4:5]]
            each = list(zip(family.parts, nat, other, blocks, strict=True))
            mean = family.to_mean(nat)
            return {
                "entropy": (family.entropy(nat), sum(f.entropy(n) for f, n, _, _ in each)),
                "kl": (family.kl(nat, other), sum(f.kl(n, o) for f, n, o, _ in each)),
                "log_partition": (
                    family.log_partition(nat),
                    sum(f.log_partition(n) for f, n, _, _ in each),
                ),
                "log_prob": (
                    family.log_prob(nat, z),
                    sum(f.log_prob(n, b) for f, n, _, b in each),
                ),
                "var": (family.var(nat), jnp.concatenate([f.var(n) for f, n, _, _ in each])),
                "cov": (family.cov(nat), jnp.diag(family.var(nat))),
                "to_mean": (mean, tuple(f.to_mean(n) for f, n, _, _ in each)),
                "to_nat": (family.to_nat(mean), nat),
                "from_moments": (family.from_moments(z, family.cov(nat)), nat),
                "stats": (family.stats(z), tuple(f.stats(b) for f, _, _, b in each)),
                "natural_gradient": (
                    family.natural_gradient(nat, other),
                    tuple(f.natural_gradient(n, o) for f, n, o, _ in each),
                ),
            }

        for got, want in pairs(jnp.linspace(-1, 2, family.num_raw)).values():
            jax.tree.map(lambda x, y: close(x, y, 1e-12, 1), got, want)

    def test_gradient_is_mean(self):
        family = product()
        nat = family.from_unconstrained(jnp.linspace(-1, 2, family.num_raw))
        mean = gradient(family, "log_partition")(nat)
        jax.tree.map(lambda x, y: close(x, y, 1e-13, 1), mean, jitted(family, "to_mean")(nat))

    def test_nodes_and_samples(self):
        family = product()
        nat = family.from_unconstrained(jnp.linspace(-1, 2, family.num_raw))
        points, weights = jax.jit(family.nodes)(nat)
        assert points.shape == (32, 5)
        close(weights.sum(), 1, 1e-14)
        close(weights @ points, family.mean(nat), 1e-13)
        spread = points - family.mean(nat)
        close((weights * spread.T) @ spread, family.cov(nat), 1e-12, 1)
        draws = jax.jit(family.sample, static_argnums=2)(nat, jax.random.key(0), 2000)
        error = np.sqrt(family.var(nat) / 2000)
        assert np.all(np.abs(draws.mean(0) - family.mean(nat)) < 5 * error)

    def test_refusals_and_validity(self):
        with pytest.raises(InputError):
            Product(())
        big = Product((Gamma(6), Bernoulli(5)))
        with pytest.raises(InputError, match="Monte-Carlo"):
            big.nodes(big.from_unconstrained(jnp.zeros(big.num_raw)))
        family = product()
        nat = family.from_unconstrained(jnp.zeros(family.num_raw))
        assert family.valid(nat)
        assert not family.valid((nat[0].at[0, 1].set(1.0), *nat[1:]))

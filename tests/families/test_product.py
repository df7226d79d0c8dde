"""A product family is its parts, side by side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf.errors import InputError
from evkf.families import (
    BernoulliFamily,
    BetaFamily,
    ContinuousBernoulliFamily,
    DiagonalGaussianFamily,
    GammaFamily,
    ProductFamily,
)
from tests.families.cases import close, compiled, gradient, jitted
from tests.quick import quick_compilation  # noqa: F401

PRODUCT = ProductFamily((DiagonalGaussianFamily(2), ContinuousBernoulliFamily(1), GammaFamily(1)))


def test_equals_its_parts():
    family = PRODUCT
    assert family.dim == 4
    assert family.num_raw == 2 * 2 + 1 + 2
    assert not family.correctable
    assert ProductFamily((GammaFamily(1), BetaFamily(2))).correctable
    close(family.log_base, sum(part.log_base for part in family.parts), 0)

    @compiled
    def pairs(raw):
        """What the product gives, and what its parts give."""
        nat, other = family.from_unconstrained(raw), family.from_unconstrained(raw[::-1])
        z = family.mean(nat)
        blocks = [z[:2], z[2:3], z[3:]]
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

    for got, want in pairs(np.linspace(-1, 2, family.num_raw)).values():
        jax.tree.map(lambda x, y: close(x, y, 1e-12, 1), got, want)


def test_gradient_is_mean():
    nat = member(PRODUCT)
    mean = gradient(PRODUCT, "log_partition")(nat)
    jax.tree.map(lambda x, y: close(x, y, 1e-13, 1), mean, jitted(PRODUCT, "to_mean")(nat))


def test_nodes_reproduce_moments():
    nat = member(PRODUCT)
    points, weights = jitted(PRODUCT, "nodes")(nat)
    mean, cov = jitted(PRODUCT, "mean")(nat), jitted(PRODUCT, "cov")(nat)
    assert points.shape == (16, 4)
    close(weights.sum(), 1, 1e-14)
    close(weights @ points, mean, 1e-13)
    close((weights * (points - mean).T) @ (points - mean), cov, 1e-12, 1)


def test_samples():
    family = ProductFamily((ContinuousBernoulliFamily(2), DiagonalGaussianFamily(1)))
    nat = member(family)
    draws = compiled(lambda nat: family.sample(nat, jax.random.key(0), 2000))(nat)
    error = np.sqrt(jitted(family, "var")(nat) / 2000)
    assert np.all(np.abs(draws.mean(0) - jitted(family, "mean")(nat)) < 5 * error)
    # Parts draw from keys of their own.
    assert abs(np.corrcoef(draws.T)[0, 2]) < 0.1


def test_refusals_and_validity():
    with pytest.raises(InputError):
        ProductFamily(())
    big = ProductFamily((GammaFamily(6), BernoulliFamily(5)))
    with pytest.raises(InputError, match="monte_carlo"):
        jax.eval_shape(big.nodes, member(big))
    first, *rest = member(PRODUCT)
    assert jitted(PRODUCT, "valid")((first, *rest))
    assert not jitted(PRODUCT, "valid")((-first, *rest))


def member(family):
    return jitted(family, "from_unconstrained")(np.linspace(-1, 2, family.num_raw))

"""Likelihoods given by functions, and several likelihoods side by side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf import likelihoods as lik
from evkf.errors import InputError
from tests.likelihoods.cases import L, as_float32

C = np.array([[1.0, 0.5], [-0.3, 0.8], [0.2, 0.2]])
ALL = np.ones(3, bool)
SOME = np.array([True, False, True])


def vector_form(params, z, y):
    return y * (params @ z) - jnp.exp(params @ z)


def scalar_form(params, z, y):
    return jnp.sum(vector_form(params, z, y))


def poisson_mean(params, z):
    return jnp.exp(params @ z)


def poisson_sample(params, z, key):
    return jax.random.poisson(key, poisson_mean(params, z)).astype(z.dtype)


@pytest.mark.parametrize("form", [vector_form, scalar_form])
def test_custom_is_the_function(form):
    custom = lik.Custom(form, 3, jnp.asarray(C))
    z, y = jnp.array([0.4, -1.0]), jnp.array([2.0, 0.0, 1.0])
    want = float(np.sum(y * (C @ z) - np.exp(C @ z)))
    assert float(custom.log_prob(z, y, ALL)) == pytest.approx(want)
    assert not custom.log_concave


def test_single_channels_of_a_vector_form_can_be_masked():
    custom = lik.Custom(vector_form, 3, jnp.asarray(C))
    z, y = jnp.array([0.4, -1.0]), jnp.array([2.0, jnp.nan, 1.0])
    terms = np.where(SOME, y * (C @ z) - np.exp(C @ z), 0)
    value, grad = jax.value_and_grad(custom.log_prob)(z, y, SOME)
    np.testing.assert_allclose(value, terms.sum(), rtol=1e-12)
    assert np.all(np.isfinite(grad))


def test_a_scalar_form_counts_only_when_nothing_is_masked():
    custom = lik.Custom(scalar_form, 3, jnp.asarray(C))
    z, y = jnp.array([0.4, -1.0]), jnp.array([2.0, jnp.nan, 1.0])
    value, grad = jax.value_and_grad(custom.log_prob)(z, y, SOME)
    assert value == 0
    assert np.all(grad == 0)


def test_custom_parameters_are_leaves():
    custom = lik.Custom(vector_form, 3, jnp.asarray(C))
    grad = jax.grad(lambda c: c.log_prob(jnp.ones(L), jnp.ones(3), ALL))(custom)
    want = np.outer(1 - np.exp(C @ np.ones(L)), np.ones(L))
    np.testing.assert_allclose(grad.params, want, rtol=1e-12)


def test_custom_mean_and_sample():
    custom = lik.Custom(vector_form, 3, jnp.asarray(C), poisson_mean, poisson_sample)
    z = jnp.array([0.4, -1.0])
    np.testing.assert_allclose(custom.mean(z), np.exp(C @ z), rtol=1e-12)
    draws = jax.vmap(custom.sample, (None, 0))(z, jax.random.split(jax.random.key(0), 20_000))
    rate = np.exp(C @ z)
    assert np.all(np.abs(draws.mean(0) - rate) < 5 * np.sqrt(rate / 20_000))
    with pytest.raises(InputError, match="mean_fn"):
        lik.Custom(vector_form, 3).mean(z)
    with pytest.raises(InputError, match="sample_fn"):
        lik.Custom(vector_form, 3).sample(z, jax.random.key(0))


@pytest.mark.parametrize("name", ["log_prob_fn", "mean_fn", "cov_fn", "sample_fn"])
def test_functions_are_functions(name: str):
    given = {"log_prob_fn": vector_form, name: np.ones(3)}
    with pytest.raises(InputError, match=rf"a ndarray \(in {name}\): pass a function"):
        lik.Custom(num_channels=3, **given)


def test_what_fills_in_is_one_finite_number():
    assert type(lik.Custom(vector_form, 3, fill=jnp.ones(())).fill) is float
    for fill in (np.nan, jnp.ones(3), "one"):
        with pytest.raises(InputError, match="in fill"):
            lik.Custom(vector_form, 3, fill=fill)


def joint():
    parts = [
        lik.Poisson(C, bin_width=0.5),
        lik.Gaussian(C[:2], noise=0.3),
        lik.Custom(vector_form, 3, jnp.asarray(C), poisson_mean, poisson_sample),
    ]
    return lik.Joint(parts)


def test_joint_is_the_sum():
    both = joint()
    z = jnp.array([0.4, -1.0])
    y = jnp.array([1.0, 0.0, 3.0, -0.2, 0.7, 1.0, 1.0, 0.0])
    mask = np.array([True, True, False, True, False, True, False, True])
    spoiled = jnp.where(mask, y, jnp.nan)
    want = sum(
        part.log_prob(z, spoiled[i:j], mask[i:j])
        for part, i, j in zip(both.parts, (0, 3, 5), (3, 5, 8), strict=True)
    )
    assert both.num_channels == 8
    np.testing.assert_allclose(both.log_prob(z, spoiled, mask), want, rtol=1e-12)
    np.testing.assert_allclose(both.mean(z), jnp.concatenate([p.mean(z) for p in both.parts]))
    assert both.sample(z, jax.random.key(0)).shape == (8,)
    small = as_float32(both)
    z32, y32 = z.astype(jnp.float32), y.astype(jnp.float32)
    assert jax.eval_shape(small.log_prob, z32, y32, mask).dtype == jnp.float32
    assert jax.eval_shape(small.sample, z32, jax.random.key(0)).dtype == jnp.float32


def test_joint_is_log_concave_if_all_parts_are():
    assert lik.Joint([lik.Poisson(C), lik.Gaussian(C)]).log_concave
    assert not lik.Joint([lik.Poisson(C), lik.StudentT(C)]).log_concave


def test_joint_parts_draw_independently():
    twice = lik.Joint([lik.Gaussian(C), lik.Gaussian(C)])
    draw = np.asarray(twice.sample(jnp.zeros(L), jax.random.key(1)))
    assert not np.any(draw[:3] == draw[3:])


def test_joint_names_the_channels_it_refuses():
    ys = np.ones((4, 8))
    ys[2, 1] = -1
    with pytest.raises(InputError, match=r"negative count -1.0 \(in ys\[:, 0:3\]\[2, 1\]\)"):
        joint().check(ys, np.ones_like(ys, bool), "ys")

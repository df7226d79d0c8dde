"""Every dynamics model against an independent line of NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evkf import dynamics as dyn
from evkf import families as fam
from tests.likelihoods.cases import as_float32

COUNT, U = 100, 2
NONE = np.zeros((COUNT, 0))


def silu(x):
    return x / (1 + np.exp(-x))


def van_der_pol(z, gamma=1.1, tau=(0.2, 0.4), dt=0.02):
    x, y = z
    return np.array([x + dt / tau[0] * y, y + dt / tau[1] * (gamma * (1 - x * x) * y - x)])


def chaotic_rnn(z, W, gamma=2.0, tau=0.05, dt=0.01):
    return z + dt * (-z + gamma * np.dot(W, np.tanh(z))) / tau


def lorenz(z, sigma=9.0, rho=26.0, beta=2.5, dt=0.01, scale=5.0):
    x, y, w = scale * z
    step = np.array([sigma * (y - x), x * (rho - w) - y, x * y - beta * w])
    return z + dt * step / scale


def ring(z, radius=2.0, pull=3.0, dt=0.1):
    return z + dt * pull * (1 - np.hypot(*z) ** 2 / radius**2) * z


W = np.random.default_rng(0).normal(size=(3, 3))
C = np.array([0.1, -0.2, 0.3])

SYSTEMS = {
    "linear": (
        lambda B: dyn.Linear(W, noise=0.1, bias=C, input_weight=B),
        lambda z: W.dot(z) + C,
        3,
    ),
    "van_der_pol": (
        lambda B: dyn.VanDerPol(1.1, (0.2, 0.4), 0.02, input_weight=B),
        van_der_pol,
        2,
    ),
    "chaotic_rnn": (
        lambda B: dyn.ChaoticRNN(W, 2.0, 0.05, 0.01, input_weight=B),
        lambda z: chaotic_rnn(z, W),
        3,
    ),
    "lorenz": (
        lambda B: dyn.Lorenz(9.0, 26.0, 2.5, 0.01, 5.0, input_weight=B),
        lorenz,
        3,
    ),
    "ring": (lambda B: dyn.RingAttractor(2.0, 3.0, 0.1, input_weight=B), ring, 2),
}


@jax.jit
def means(dynamics, zs, us):
    return jax.vmap(dynamics.mean)(zs, us)


@jax.jit
def transitions(dynamics, zs, us):
    return jax.vmap(dynamics.transition)(zs, us)


@pytest.mark.parametrize("name", SYSTEMS)
def test_mean_of_a_system(name):
    make, oracle, dim = SYSTEMS[name]
    rng = np.random.default_rng(1)
    zs, us = 2 * rng.normal(size=(COUNT, dim)), rng.normal(size=(COUNT, U))
    B = rng.normal(size=(dim, U))
    want = np.stack([oracle(z) for z in zs])
    plain, driven = make(None), make(B)
    assert plain.num_inputs == 0
    assert driven.num_inputs == U
    assert plain.dim == dim
    np.testing.assert_allclose(means(plain, zs, NONE), want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(means(driven, zs, us), want + us @ B.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("noise", [0.3, [0.1, 0.4], [[0.5, 0.2], [0.2, 0.3]]])
def test_transition_is_the_mean_with_the_noise(noise):
    system = dyn.VanDerPol(noise=noise)
    z = jnp.array([0.5, -1.0])
    belief = system.transition(z, jnp.zeros(0))
    full = np.asarray(noise) if np.ndim(noise) == 2 else np.diag(np.broadcast_to(noise, 2))
    np.testing.assert_allclose(belief.mean, system.mean(z, jnp.zeros(0)))
    np.testing.assert_allclose(belief.cov, full, rtol=1e-12)
    assert isinstance(system.family, fam.GaussianFamily)


def test_van_der_pol_has_a_limit_cycle():
    """The printed damping, (1 - z1)^2, diverges; the mended one settles near amplitude two."""
    system = dyn.VanDerPol(noise=1e-9)

    @jax.jit
    def run(z):
        return jax.lax.scan(lambda z, _: ((w := system.mean(z, jnp.zeros(0))), w), z, length=4000)[
            1
        ]

    for start in ([0.1, 0.0], [4.0, 4.0]):
        path = np.asarray(run(jnp.array(start)))[2000:, 0]
        assert 1.9 < path.max() < 2.2
        assert -2.2 < path.min() < -1.9


def test_ring_attracts():
    system = dyn.RingAttractor(radius=1.5)
    z = jnp.array([0.3, 0.1])
    for _ in range(200):
        z = system.mean(z, jnp.zeros(0))
    assert float(jnp.linalg.norm(z)) == pytest.approx(1.5, abs=1e-6)
    assert float(z[1] / z[0]) == pytest.approx(1 / 3, rel=1e-6)


def test_network_and_residual_mlp():
    rng = np.random.default_rng(2)
    zs, us = rng.normal(size=(COUNT, 3)), rng.normal(size=(COUNT, U))
    model = dyn.ResidualMLP(3, 0.1, jax.random.key(0), hidden=(8, 7), num_inputs=U)
    x = np.concatenate([zs, us], 1)
    layers = list(zip(model.network.weights, model.network.biases, strict=True))
    assert [w.shape for w, _ in layers] == [(8, 5), (7, 8), (3, 7)]
    for weight, bias in layers[:-1]:
        x = silu(x @ np.asarray(weight).T + np.asarray(bias))
    want = zs + x @ np.asarray(layers[-1][0]).T + np.asarray(layers[-1][1])
    np.testing.assert_allclose(means(model, zs, us), want, rtol=1e-12, atol=1e-12)


def test_a_fresh_network_is_nearly_a_random_walk():
    model = dyn.ResidualMLP(2, 0.1, jax.random.key(0), output_scale=0.0)
    z = jnp.array([0.5, -0.5])
    np.testing.assert_array_equal(model.mean(z, jnp.zeros(0)), z)
    other = dyn.ResidualMLP(2, 0.1, jax.random.key(1), output_scale=0.0)
    assert not np.array_equal(model.network.weights[0], other.network.weights[0])


def wild_network(sizes, scale, seed):
    """A network all of whose weights are larger than usual: outputs up to the square of that."""
    network = dyn.Network(sizes, jax.random.key(seed))
    return jax.tree.map(lambda x: scale * x, network)


FAMILIES = [
    fam.GaussianFamily(6),
    fam.DiagonalGaussianFamily(2),
    fam.GammaFamily(2),
    fam.BetaFamily(2),
    fam.ContinuousBernoulliFamily(2),
    fam.BernoulliFamily(2),
    fam.ProductFamily((fam.GammaFamily(1), fam.ContinuousBernoulliFamily(1))),
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: type(f).__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_natural_dynamics_land_in_the_family(family, dtype):
    """Weights up to a thousand times their usual size: always a valid, finite belief."""
    rng = np.random.default_rng(3)
    zs = rng.random((COUNT, family.dim)).astype(dtype)
    us = rng.normal(size=(COUNT, U)).astype(dtype)
    for scale in (1.0, 30.0, 1000.0):
        network = wild_network([family.dim + U, 8, family.num_raw], scale, 4)
        model = dyn.NaturalDynamics(family, network, U)
        if dtype == np.float32:
            model = as_float32(model)
        beliefs = transitions(model, zs, us)
        assert {x.dtype for x in jax.tree.leaves(beliefs)} == {np.dtype(dtype)}
        assert np.all(jax.vmap(family.valid)(beliefs))


def test_natural_dynamics_of_one_parameter_families_are_the_network():
    network = dyn.Network([2 + U, 8, 2], jax.random.key(5))
    rng = np.random.default_rng(6)
    z, u = rng.random(2), rng.normal(size=U)
    want = network(jnp.concatenate([z, u]))
    for family in (fam.ContinuousBernoulliFamily(2), fam.BernoulliFamily(2)):
        belief = dyn.NaturalDynamics(family, network, U).transition(z, u)
        np.testing.assert_allclose(belief[:, 0], want, rtol=1e-12)


def test_the_gaussian_precision_depends_on_the_state():
    family = fam.GaussianFamily(2)
    network = dyn.Network([2, 8, family.num_raw], jax.random.key(7))
    model = dyn.NaturalDynamics(family, network)
    near, far = (model.transition(jnp.full(2, x), jnp.zeros(0)) for x in (0.0, 3.0))
    assert np.max(np.abs(near.cov - far.cov)) > 1e-3
    np.testing.assert_allclose(near.mean, network(jnp.zeros(2))[:2], rtol=1e-9)
    assert np.max(np.abs(near.cov[0, 1])) > 1e-3


@pytest.mark.parametrize("precision", [0.5, 25.0, 1e4])
def test_gamma_dynamics_have_mean_f_and_constant_variance(precision):
    network = dyn.Network([2 + U, 8, 2], jax.random.key(8))
    model = dyn.GammaDynamics(network, 2, precision, U)
    rng = np.random.default_rng(9)
    zs, us = rng.random((COUNT, 2)), rng.normal(size=(COUNT, U))
    beliefs = np.asarray(transitions(model, zs, us))
    outputs = np.asarray(jax.vmap(network)(np.concatenate([zs, us], 1)))
    shape, rate = beliefs[..., 0] + 1, -beliefs[..., 1]
    np.testing.assert_allclose(shape / rate, np.logaddexp(0, outputs) + 1e-4, rtol=1e-9)
    np.testing.assert_allclose(shape / rate**2, 1 / precision, rtol=1e-9)


@pytest.mark.parametrize("concentration", [2.0, 50.0, 1e4])
def test_beta_dynamics_have_mean_f(concentration):
    network = dyn.Network([2 + U, 8, 2], jax.random.key(10))
    model = dyn.BetaDynamics(network, 2, concentration, U)
    rng = np.random.default_rng(11)
    zs, us = rng.random((COUNT, 2)), rng.normal(size=(COUNT, U))
    beliefs = np.asarray(transitions(model, zs, us))
    outputs = np.asarray(jax.vmap(network)(np.concatenate([zs, us], 1)))
    a, b = beliefs[..., 0] + 1, beliefs[..., 1] + 1
    mean = 1e-4 + (1 - 2e-4) / (1 + np.exp(-outputs))
    np.testing.assert_allclose(a / (a + b), mean, rtol=1e-9)
    variance = mean * (1 - mean) / (concentration + 1)
    np.testing.assert_allclose(a * b / (a + b) ** 2 / (a + b + 1), variance, rtol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_gamma_and_beta_dynamics_stay_valid(scale):
    network = wild_network([2, 8, 2], scale, 12)
    zs = np.random.default_rng(13).random((COUNT, 2))
    for model in (dyn.GammaDynamics(network, 2, 25.0), dyn.BetaDynamics(network, 2, 50.0)):
        for zs_, model_ in ((zs, model), (zs.astype(np.float32), as_float32(model))):
            beliefs = transitions(model_, zs_, NONE.astype(zs_.dtype))
            assert beliefs.dtype == zs_.dtype
            assert np.all(jax.vmap(model.family.valid)(beliefs))


@pytest.mark.parametrize("name", SYSTEMS)
def test_systems_keep_float32(name):
    make, _, dim = SYSTEMS[name]
    model = as_float32(make(np.ones((dim, U))))
    out = jax.eval_shape(model.transition, jnp.ones(dim, "float32"), jnp.ones(U, "float32"))
    assert {x.dtype for x in out} == {jnp.dtype("float32")}

"""Models small enough to compile quickly, and a recording that a filter has seen."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from evkf import dynamics as dyn
from evkf import families as fam
from evkf import likelihoods as lik
from evkf.filters import VariationalKalmanFilter
from evkf.learning import Learner
from evkf.learning.ring import Window
from evkf.model import Model

L, N, T, U = 2, 4, 10, 1
TRIAL = 6
"""Where the second trial begins."""
A = np.array([[0.9, 0.3], [-0.2, 0.8]])
Q = np.array([[0.3, 0.1], [0.1, 0.2]])
M0, P0 = np.array([0.5, -1.0]), np.array([[1.0, 0.3], [0.3, 0.8]])
FILTER = VariationalKalmanFilter(tolerance=1e-10, solver="cvi", max_evaluations=1000)
"""Converged to rounding, by the solver that compiles faster."""
FULL = fam.GaussianFamily(L)
WATCHER = Learner(FILTER, ring=T, window=T - 1)
KEY = jax.random.key(0)


def readout(dim=L):
    rng = np.random.default_rng(dim)
    return 0.7 * rng.normal(size=(N, dim)), 0.5 * rng.normal(size=N)


def behind(likelihood, family=FULL):
    """Linear dynamics with an input under a likelihood."""
    dynamics = dyn.Linear(A, Q, bias=[0.1, -0.2], input_weight=[[0.5], [-0.8]])
    return Model(dynamics, likelihood, family.from_moments(jnp.array(M0), jnp.array(P0)), family)


def network(outputs):
    return dyn.Network([L + U, 5, outputs], jax.random.key(1))


def joint():
    """Every likelihood with a readout that has no model of its own below."""
    C, b = readout()
    parts = [
        lik.NegativeBinomial(C[:1], b[:1], dispersion=3.0),
        lik.Bernoulli(C[1:2], b[1:2]),
        lik.Gaussian(C[2:], b[2:], 0.3),
    ]
    mlp = dyn.ResidualMLP(L, 0.1, jax.random.key(0), hidden=5, num_inputs=U, output_scale=0.3)
    # A box that no state will widen: the dynamics stay what they are.
    return Model(mlp.visited(jnp.zeros(L), jnp.full(L, 10.0)), lik.Joint(parts))


def pair():
    """Two signals behind a network: something of every part to learn, and quick to compile."""
    C, b = readout()
    parts = [lik.Gaussian(C[:2], b[:2], 0.5), lik.Gaussian(C[2:], b[2:], 0.3)]
    mlp = dyn.ResidualMLP(L, 0.1, jax.random.key(0), hidden=5, num_inputs=U, output_scale=0.3)
    return Model(mlp, lik.Joint(parts))


def student_t():
    """Four latents: beyond the sizes up to which factorisations are written out."""
    weight = np.random.default_rng(2).normal(size=(4, 4)) / 2
    dynamics = dyn.Linear(weight, 0.1, input_weight=np.ones((4, U)))
    return Model(dynamics, lik.StudentT(*readout(4), df=3.0, scale=0.8))


def gamma():
    dynamics = dyn.GammaDynamics(network(L), L, 25.0, num_inputs=U)
    return Model(dynamics, lik.Poisson(*readout()))


def mixed():
    family = fam.ProductFamily((fam.BetaFamily(1), fam.ContinuousBernoulliFamily(1)))
    dynamics = dyn.NaturalDynamics(family, network(3), num_inputs=U)
    return Model(dynamics, lik.Gaussian(*readout(), noise=0.3))


MODELS = {
    "linear": lambda: behind(lik.Gaussian(*readout(), noise=[0.3, 0.4, 0.5, 0.6], bin_width=0.5)),
    "full_noise": lambda: behind(lik.Gaussian(*readout(), noise=0.3 * np.eye(N) + 0.1)),
    "poisson": lambda: behind(lik.Poisson(*readout())),
    "student_t": student_t,
    "joint": joint,
    "diagonal_gaussian": lambda: behind(lik.Poisson(*readout()), fam.DiagonalGaussianFamily(L)),
    "gamma": gamma,
    "mixed": mixed,
}
COUNTS = ("poisson", "diagonal_gaussian", "gamma")


def recording(name):
    """Two trials with gaps and inputs: observations, masks, inputs, trial starts."""
    rng = np.random.default_rng(5)
    counts, reals = rng.poisson(2.0, size=(T, N)).astype(float), rng.normal(size=(T, N))
    ys = counts if name in COUNTS else reals
    if name == "joint":
        ys = np.column_stack([counts[:, 0], counts[:, 1] > 1, reals[:, 2:]])
    masks = rng.random((T, N)) < 0.8
    masks[3] = False
    arrays = ys, masks, rng.normal(size=(T, U)), np.arange(T) == TRIAL
    return tuple(jnp.asarray(array) for array in arrays)


@jax.jit
def watch(model, *bins):
    """Observe a recording without learning from it; returns what was kept of it and the bounds."""
    start = WATCHER.init(model)
    state, info = lax.scan(lambda state, each: WATCHER.observe(state, *each), start, bins)
    return state.ring.bins, info


class Seen(NamedTuple):
    """What a filter has seen of a model."""

    model: Model
    window: Window
    """The recording."""
    elbo: Float[Array, " T"]
    """The filter's bounds, less the terms that a replay leaves out."""


@cache
def seen(name) -> Seen:
    """Filter a recording."""
    model, (ys, masks, *rest) = MODELS[name](), recording(name)
    bins, info = watch(model, ys, masks, *rest)
    assert not np.any(info.status)
    left_out = (
        base(model.likelihood, ys, masks) if isinstance(model.family, fam.GaussianFamily) else 0
    )
    return Seen(model, Window(model.prior, bins, jnp.arange(T)), info.elbo - left_out)


def base(likelihood, ys, masks):
    """Terms of y alone, which a Gaussian replay leaves out."""
    if isinstance(likelihood, lik.Joint):
        pieces = zip(likelihood.parts, likelihood.split(ys), likelihood.split(masks), strict=True)
        return sum(base(*piece) for piece in pieces)
    if not isinstance(likelihood, lik.ReadoutLikelihood):
        return 0.0
    return jnp.sum(jnp.where(masks, likelihood.each_base(ys), 0), axis=1)

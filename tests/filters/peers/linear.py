"""A small linear-Gaussian problem and its exact solution."""

import jax
import numpy as np

from evkf.dynamics import Linear
from evkf.likelihoods import Gaussian
from evkf.model import Model, simulate
from tests.oracles import kalman_loop


def linear_model(num_bins):
    """Two latents that turn, three channels: the model, its states and observations."""
    dynamics = Linear([[0.9, 0.3], [-0.3, 0.9]], [0.1, 0.2])
    C = np.random.default_rng(0).normal(size=(3, 2))
    model = Model(dynamics, Gaussian(C, noise=0.5))
    zs, ys = simulate(model, jax.random.key(5), num_bins)
    return model, np.asarray(zs), ys


def kalman_run(model, ys):
    """Means, covariances and evidence of every bin, for any linear-Gaussian model."""
    dynamics, likelihood = model.dynamics, model.likelihood
    C, R = np.asarray(likelihood.C), np.asarray(likelihood.noise.matrix())
    A, Q = np.asarray(dynamics.weight), np.asarray(dynamics.noise.matrix())
    # The offset of the dynamics is a state that stays at one.
    A = np.block([[A, np.asarray(dynamics.bias)[:, None]], [np.zeros((1, 2)), np.ones((1, 1))]])
    Q, C = np.pad(Q, (0, 1)), np.pad(C, ((0, 0), (0, 1)))
    m, P = np.append(model.prior.mean, 1), np.pad(np.asarray(model.prior.cov), (0, 1))
    ys = np.asarray(ys)
    out = kalman_loop(A, Q, C, np.asarray(likelihood.b), R, m, P, ys, np.ones(ys.shape, bool))
    return out[0][:, :2], out[1][:, :2, :2], out[2]

"""Bounded and positive states.

Some states are not real numbers: a switch is mostly on or off, a share lies between 0 and 1, a
concentration is positive. One filter serves all of them; the family of beliefs and the dynamics
differ.
"""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from evkf import Model, VariationalKalmanFilter, scan_filter, simulate
from evkf.dynamics import BetaDynamics, GammaDynamics, NaturalDynamics
from evkf.families import ContinuousBernoulliFamily
from evkf.likelihoods import Gaussian, Poisson
from evkf.plotting.style import BAND, ESTIMATE, STYLE, TRUTH

QUICK = "--quick" in sys.argv
BINS = 60 if QUICK else 300
filter = VariationalKalmanFilter()
rng = np.random.default_rng(0)


def follow(model, seed):
    """Draw states and observations of a model, and filter them."""
    states, ys = simulate(model, jax.random.key(seed), BINS)
    _, trace = scan_filter(filter, model, ys)
    means = jax.vmap(model.family.mean)(trace.belief)
    odd = int(np.sum(np.asarray(trace.info.status) > 0))
    error = float(jnp.sqrt(jnp.mean((means - states) ** 2)))
    name, spread = type(model.family).__name__, float(jnp.std(states))
    print(f"{name}: error {error:.3f}, spread of states {spread:.3f}, {odd} bins with a status")
    return np.asarray(states), np.asarray(trace.belief)


# ## States that saturate: continuous Bernoulli
#
# `NaturalDynamics` takes any module that maps a state to natural parameters. This module rotates
# the square about its centre and scales it, so that states jump from corner to corner. Its arrays
# can be learned.


class Turn(eqx.Module):
    """Natural parameters 40 R(2z - 1), where R rotates by 0.9 rad."""

    weight: jax.Array

    def __call__(self, z):
        return self.weight @ (2 * z - 1)


cos, sin = np.cos(0.9), np.sin(0.9)
switch = NaturalDynamics(
    ContinuousBernoulliFamily(2), Turn(jnp.array([[cos, -sin], [sin, cos]]) * 40)
)
switching = Model(switch, Gaussian(rng.normal(size=(12, 2)), noise=0.5))
switched, switch_beliefs = follow(switching, 1)

# A continuous Bernoulli has one parameter, so its mean determines its variance. With mean 0.5 it is
# uniform. This family suits states near 0 or 1.

# ## States between 0 and 1 with narrow beliefs: Beta
#
# One share oscillates between 0.1 and 0.9; the second follows with a lag. The module returns logits
# of the mean; the concentration sets the spread of states about that mean.


class Swing(eqx.Module):
    """Logits that rotate by 0.15 rad per bin and approach a circle of radius 2."""

    turn: jax.Array

    def __call__(self, z):
        logit = jnp.log(z) - jnp.log1p(-z)
        turned = self.turn @ logit
        return 1.25 * turned / (1 + 0.25 * jnp.sum(turned**2) / 2.0**2)


cos, sin = np.cos(0.15), np.sin(0.15)
share = BetaDynamics(Swing(jnp.array([[cos, -sin], [sin, cos]])), 2, concentration=200.0)
sharing = Model(share, Gaussian(rng.normal(size=(8, 2)), noise=0.2))
shared, share_beliefs = follow(sharing, 2)

# ## Positive states: Gamma, observed through spikes
#
# Each of two drives relaxes to 1 and is driven by the other. For Poisson counts with a log-linear
# readout, the expected count is finite only if the rate parameter of the belief exceeds the weight.
# The filter ensures this.


class Relax(eqx.Module):
    """Inverse softplus of the mean of the next state."""

    pull: jax.Array

    def __call__(self, z):
        mean = 0.1 + 0.9 * z - 0.25 * jnp.tanh(z[::-1] - 1) * jnp.array([1.0, -1.0])
        return jnp.log(jnp.expm1(jnp.maximum(self.pull * mean, 0.05)))


drive = GammaDynamics(Relax(jnp.array(1.0)), 2, precision=60.0)
weights = rng.uniform(0.0, 0.8, size=(40, 2))
driving = Model(drive, Poisson(weights, np.full(40, np.log(15.0)), bin_width=0.02))
driven, drive_beliefs = follow(driving, 3)

# ## Plot the beliefs
#
# The intervals follow from the family: they lie within the bounds and are asymmetric near them. A
# belief is an array of natural parameters, (latents, parameters): for Beta, both shapes minus one;
# for Gamma, shape minus one and the negative rate.


def beta_band(beliefs):
    return stats.beta.interval(0.95, beliefs[:, 0, 0] + 1, beliefs[:, 0, 1] + 1)


def gamma_band(beliefs):
    return stats.gamma.interval(0.95, beliefs[:, 0, 0] + 1, scale=-1 / beliefs[:, 0, 1])


def switch_band(beliefs):
    """Quantiles of exp(l z) on [0, 1], which are log(1 + p (e^l - 1)) / l."""
    nat = np.where(np.abs(beliefs[:, 0, 0]) < 1e-3, 1e-3, beliefs[:, 0, 0]).astype(float)
    return [np.logaddexp(np.log1p(-p), np.log(p) + nat) / nat for p in (0.025, 0.975)]


rows = [
    ("Continuous Bernoulli: at either end", switching, switched, switch_beliefs, switch_band),
    ("Beta: between 0 and 1", sharing, shared, share_beliefs, beta_band),
    ("Gamma: positive, from spikes", driving, driven, drive_beliefs, gamma_band),
]
with plt.rc_context(STYLE):
    figure, axes = plt.subplots(3, 1, figsize=(8.4, 4.8), layout="constrained", sharex=True)
    for ax, (title, model, states, beliefs, band) in zip(axes, rows, strict=True):
        bins = np.arange(min(BINS, 120))
        low, high = (np.asarray(edge)[bins] for edge in band(beliefs))
        means = np.asarray(jax.vmap(model.family.mean)(beliefs))[bins, 0]
        ax.fill_between(bins, low, high, color=BAND, lw=0, label="95 % interval")
        ax.plot(bins, means, color=ESTIMATE, lw=1.2, label="filtered mean")
        ax.plot(bins, states[bins, 0], color=TRUTH, lw=0.8, label="truth")
        ax.set(title=title, ylabel="$z_1$")
    axes[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0)
    axes[-1].set(xlabel="bin", xlim=(0, min(BINS, 120) - 1))
    figure.savefig("bounded_states.png", dpi=110)

# ![Three states with their intervals](../docs/img/bounded_states.png)
#
# Beliefs of these families are products of independent latents. In the last row, every neuron
# depends on both drives, so the data determine only a mixture of them well. Intervals of the single
# drives are then sometimes too narrow. Gaussian beliefs can represent such correlations.
#
# ## Learn the dynamics
#
# These dynamics were known. To learn dynamics, use a network instead, such as
# `NaturalDynamics(ContinuousBernoulliFamily(2), Network([2, 32, 2], key))`, and pass the model to a
# `Learner`. Table 3 and the Gamma figure of [reproduction](../docs/reproduction.md) show results.

"""A new likelihood.

A new observation model is one class. Here, channels saturate, as calcium indicators and amplifiers
do. The package derives gradients, curvatures and expectations from one function. We test the class,
filter with it, and compare it with a model without saturation.
"""

import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from evkf import Model, VariationalKalmanFilter, scan_filter, simulate
from evkf.dynamics import Linear
from evkf.likelihoods import Gaussian, ReadoutLikelihood
from evkf.likelihoods.base import read_readout
from evkf.numerics.checks import read_positive
from evkf.plotting.style import BAND, ESTIMATE, MUTED, STYLE, TRUTH, Z95

QUICK = "--quick" in sys.argv
BINS, CHANNELS = (100, 12) if QUICK else (600, 12)

# ## The class
#
# Each channel depends on the state only through a = C z + b, so we subclass `ReadoutLikelihood`:
#
# - `each_kernel` is the log density, up to terms without a.
# - `each_mean` and `each_sample` return the mean and a draw.
# - `check` refuses impossible observations.
# - A positive parameter is stored as its logarithm, so that learning keeps it positive.
# - `log_concave` is False, because this density is not log-concave. `each_scale` is then the length
#   in a over which the density bends.


class Saturating(ReadoutLikelihood):
    """Signals sigmoid(a) with Gaussian noise."""

    C: jax.Array
    b: jax.Array
    log_noise: jax.Array
    log_concave: ClassVar[bool] = False

    def __init__(self, C, b=None, noise=0.01):
        self.C, self.b = read_readout(C, b)
        self.log_noise = jnp.log(read_positive(noise, (), "noise"))

    def each_kernel(self, a, y):
        return -0.5 * (y - jax.nn.sigmoid(a)) ** 2 / jnp.exp(self.log_noise)

    def each_constant(self, y):
        return jnp.full_like(y, -0.5) * (self.log_noise + jnp.log(2 * jnp.pi))

    def each_mean(self, a):
        return jax.nn.sigmoid(a)

    def each_var(self, a):
        return jnp.full_like(a, 1.0) * jnp.exp(self.log_noise)

    def each_scale(self):
        return jnp.full(self.C.shape[0], 4.0) * jnp.exp(0.5 * self.log_noise)

    def each_sample(self, a, key):
        noise = jax.random.normal(key, a.shape, a.dtype)
        return jax.nn.sigmoid(a) + jnp.exp(0.5 * self.log_noise) * noise

    def check(self, ys, mask, where):
        """Accept any finite number."""


# ## Test the class
#
# The density must integrate to one, and draws must have its mean. [Extending](../docs/extending.md)
# lists all checks, including derivatives and a comparison of the update with brute force.

one = Saturating(np.ones((1, 1)), noise=0.01)
ys = jnp.linspace(-1.5, 2.5, 4001)
for a in (-4.0, 0.0, 1.0):
    log_probs = jax.vmap(lambda y: one.each_log_prob(jnp.array([a]), y[None])[0])(ys)  # noqa: B023
    assert abs(float(jnp.sum(jnp.exp(log_probs)) * (ys[1] - ys[0])) - 1) < 1e-3
    draws = one.each_sample(jnp.full(20_000, a), jax.random.key(1))
    assert abs(float(jnp.mean(draws) - one.each_mean(jnp.array([a]))[0])) < 5e-3

# ## Use the class
#
# Models use the new likelihood like any other, to simulate, to filter and to learn.

rng = np.random.default_rng(0)
turn = 0.995 * np.array([[np.cos(0.08), -np.sin(0.08)], [np.sin(0.08), np.cos(0.08)]])
dynamics = Linear(turn, noise=0.02)
model = Model(dynamics, Saturating(2.0 * rng.normal(size=(CHANNELS, 2)), noise=0.02))
states, signals = simulate(model, jax.random.key(3), BINS)
filter = VariationalKalmanFilter()
_, trace = scan_filter(filter, model, signals)
assert not np.any(trace.info.status & 2), "an update fell back"


# ## Comparison with a linear model
#
# The comparison uses the same signals and a model that is linear in the state. Its readout is the
# best linear fit to the true states, and its noise is the variance of the residuals.

design = np.column_stack([np.asarray(states), np.ones(BINS)])
best, *_ = np.linalg.lstsq(design, np.asarray(signals), rcond=None)
left = np.var(np.asarray(signals) - design @ best, axis=0)
linear = Model(dynamics, Gaussian(best[:2].T, best[2], noise=left))
_, plain = scan_filter(filter, linear, signals)


def error(found):
    return float(jnp.sqrt(jnp.mean((found.belief.mean - states) ** 2)))


print(f"error {error(trace):.3f} with the saturation, {error(plain):.3f} without")

shown = slice(0, min(BINS, 250))
with plt.rc_context(STYLE):
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.0), layout="constrained",
                                width_ratios=[1, 2.2])  # fmt: skip
    strong = int(np.argmax(np.linalg.norm(model.likelihood.C, axis=1)))
    readout = np.asarray(states @ model.likelihood.C[strong])
    axes[0].plot(readout, np.asarray(signals)[:, strong], ".", color=MUTED, ms=2.5)
    line = np.linspace(readout.min(), readout.max(), 200)
    axes[0].plot(line, 1 / (1 + np.exp(-line)), color=ESTIMATE)
    axes[0].set(xlabel="$C_nz$", ylabel="signal", title="A channel saturates")
    mean, std = trace.belief.mean[shown, 0], jnp.sqrt(trace.belief.cov[shown, 0, 0])
    bins = np.arange(len(mean))
    axes[1].fill_between(bins, mean - Z95 * std, mean + Z95 * std, color=BAND, lw=0)
    axes[1].plot(bins, plain.belief.mean[shown, 0], color="#d55e00", lw=1, label="taken as linear")
    axes[1].plot(bins, mean, color=ESTIMATE, lw=1.2, label="new likelihood, 95 % band")
    axes[1].plot(bins, states[shown, 0], color=TRUTH, lw=0.9, label="truth")
    axes[1].set(xlabel="bin", ylabel="$z_1$", title="State")
    axes[1].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0)
    figure.savefig("new_likelihood.png", dpi=110)

# ![A channel that saturates, and the state inferred with and without
# saturation](../docs/img/new_likelihood.png)
#
# ## Next
#
# - Log densities without a linear readout, new families and dynamics:
#   [extending](../docs/extending.md).
# - Learning the parameters: pass the model to `evkf.Learner`, or the likelihood to
#   `EVKF(likelihood=..., learning=Learning(parts=[...]))`, with "readout" and "observation".

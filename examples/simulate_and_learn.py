"""Simulate and learn.

An unobserved oscillator drives the spikes of 100 neurons. From the spikes alone, one pass learns
the readout, the state in every bin and the dynamics.
"""

import sys

import jax
import matplotlib.pyplot as plt
import numpy as np

from evkf import EVKF, Learning, Model, simulate
from evkf.analysis.metrics import affine_map, affine_r2
from evkf.analysis.phase import grid, limit_cycle, velocity_field
from evkf.dynamics import VanDerPol
from evkf.likelihoods import Poisson
from evkf.plotting.style import BAND, ESTIMATE, MUTED, STYLE, TRUTH, Z95

QUICK = "--quick" in sys.argv
BIN, NEURONS = 0.01, 100
LEARNED, AHEAD = (400, 20) if QUICK else (4000, 80)

# ## A simulated population
#
# A model has a prior, dynamics and a likelihood. Here the dynamics are a Van der Pol oscillator,
# and neurons fire with rates of exp(C z + b) spikes per second.

rng = np.random.default_rng(0)
C = 0.6 * rng.normal(size=(NEURONS, 2))
b = np.log(rng.uniform(5, 20, NEURONS))
truth = Model(VanDerPol(tau=(0.2, 0.2), dt=BIN), Poisson(C, b, bin_width=BIN))
states, counts = simulate(truth, jax.random.key(0), LEARNED + 600)
states, counts = np.asarray(states), np.asarray(counts)
print(f"{len(counts)} bins, {counts.mean() / BIN:.0f} spikes per second and neuron")

# ## Learn
#
# `EVKF` needs only the number of latents and the width of the bins. It estimates a readout from the
# first bins, the warm-up. Then it filters every bin and learns dynamics, noise and readout from it.
# `watch=True` measures how much the dynamics improve prediction.

model = EVKF(latents=2, bin_width=BIN, learning=Learning(warm_up=200, watch=True))
model.fit(counts[:LEARNED])
gain = float(model.evidence_.over_walk)
print(f"the dynamics gain {gain:.3f} nats per bin over a random walk")

# ## Test on the following bins
#
# `transform` filters without learning. The data determine latents only up to an affine map, so we
# fit such a map before the comparison with the truth. Real data have no known truth: use `score`
# and forecasts instead.

found = model.transform(counts)
weight, offset = affine_map(found[:LEARNED], states[:LEARNED])
print(f"R² of the true state, unseen bins: {affine_r2(found[LEARNED:], states[LEARNED:]):.3f}")

# A forecast has the mean, covariance and expected counts of the following bins.

ahead = model.forecast(AHEAD, counts[: LEARNED + 400])
mean = ahead.mean @ weight + offset
std = np.sqrt(np.einsum("tij,ik,jk->tk", ahead.cov, weight, weight))

# ## Plot the learned dynamics
#
# The learned model has a velocity field, fixed points and a limit cycle, like the model that
# generated the data. The plot uses the true coordinates.

learned, back = model.model_.dynamics, np.linalg.inv(weight)
points = grid([-3, -4.5], [3, 4.5], 17)
field = velocity_field(learned, (points - offset) @ back, bin_width=BIN) @ weight
cycle = limit_cycle(learned, found[-1], max_bins=3000)
true_cycle = limit_cycle(truth.dynamics, states[-1], max_bins=3000)
if cycle is not None and true_cycle is not None:
    periods = f"{BIN * cycle.period:.2f} s, of the truth {BIN * true_cycle.period:.2f} s"
    print(f"period of the learned cycle {periods}")

with plt.rc_context(STYLE):
    figure = plt.figure(figsize=(9.6, 4.0), layout="constrained")
    axes = figure.subplot_mosaic([["spikes", "plane"], ["first", "plane"], ["second", "plane"]],
                                 width_ratios=[1.7, 1], height_ratios=[1.4, 1, 1])  # fmt: skip
    shown = np.arange(LEARNED, LEARNED + 400)
    later = np.arange(LEARNED + 400, LEARNED + 400 + AHEAD)
    order = np.argsort(np.arctan2(C[:, 1], C[:, 0]))
    bins, neurons = np.nonzero(counts[shown[0] : later[-1]][:, order])
    axes["spikes"].plot(BIN * (shown[0] + bins), neurons, "|", color=TRUTH, ms=1.2, mew=0.5)
    axes["spikes"].set(ylabel="neuron", title="Spikes, neurons by preferred direction")
    for i, name in enumerate(("first", "second")):
        ax = axes[name]
        ax.plot(BIN * np.r_[shown, later], states[np.r_[shown, later], i], color=TRUTH, lw=0.9)
        ax.plot(BIN * shown, (found @ weight + offset)[shown, i], color=ESTIMATE, lw=1.2)
        ax.plot(BIN * later, mean[:, i], color=ESTIMATE, lw=1.2, ls="--")
        low, high = mean[:, i] - Z95 * std[:, i], mean[:, i] + Z95 * std[:, i]
        ax.fill_between(BIN * later, low, high, color=BAND, alpha=0.6, lw=0)
        ax.axvline(BIN * later[0], color=MUTED, lw=0.7, ls=":")
        ax.set(ylabel=f"$z_{i + 1}$", xlim=BIN * np.array([shown[0], later[-1]]))
    axes["spikes"].set_xlim(axes["first"].get_xlim())
    axes["first"].set_title("State: true (black), filtered, and forecast from the dotted line")
    axes["second"].set_xlabel("time (s)")
    plane = axes["plane"]
    plane.streamplot(points[0, :, 0], points[:, 0, 1], *np.moveaxis(field, -1, 0), color=BAND,
                     linewidth=0.7, arrowsize=0.7, density=1.1)  # fmt: skip
    for each, colour, name in ((true_cycle, TRUTH, "true cycle"), (cycle, ESTIMATE, "learned")):
        if each is not None:
            path = each.points if colour == TRUTH else each.points @ weight + offset
            plane.plot(*np.vstack([path, path[:1]]).T, color=colour, lw=1.4, label=name)
    plane.set(xlabel="$z_1$", ylabel="$z_2$", title="Learned dynamics")
    if plane.get_legend_handles_labels()[0]:
        plane.legend(loc="lower right", framealpha=0.9, frameon=True, edgecolor="white")
    figure.savefig("simulate_and_learn.png", dpi=110)

# ![Spikes, filtered and forecast state, learned field with true and learned
# cycle](../docs/img/simulate_and_learn.png)
#
# ## Next
#
# - A stream instead of an array: `prepare(neurons)` once, then `learn_one(y)` for each bin.
# - Separate parts, with another filter and known parameters: [filters](../docs/filters.md).
# - The learning algorithm and its results: [learning](../docs/learning.md).

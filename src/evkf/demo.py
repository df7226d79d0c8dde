"""The demonstration: spikes of many neurons in, the latent state that drives them out, bin by bin.

Neurons fire at rates set by a Van der Pol oscillator that nobody observes. Paper: table:vdp, its
Poisson case, with the readout of the first author's public generator.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from evkf.dynamics import VanDerPol
from evkf.figures import stream_figure
from evkf.filters import CompiledStep, Info, VariationalKalmanFilter
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate
from evkf.types import Status

BIN_WIDTH = 0.005
"""Seconds."""
Z90 = 1.645
"""Half-width of a 90 % interval in standard deviations."""

OnBin = Callable[[int, float, Float[np.ndarray, " D"]], None]


class Recording(NamedTuple):
    """A simulated experiment, time first."""

    model: Model
    states: Float[np.ndarray, "T L"]
    counts: Float[np.ndarray, "T N"]


class Estimate(NamedTuple):
    """What the filter made of a recording, and how long it took.

    Attributes:
        mean: Filtering means.
        cov: Filtering covariances.
        info: Diagnostics of the steps.
        seconds: From a bin's counts on the host to its estimate on the host.
        compile_s: Compilation, before the first bin.
    """

    mean: Float[np.ndarray, "T L"]
    cov: Float[np.ndarray, "T L L"]
    info: Info
    seconds: Float[np.ndarray, " T"]
    compile_s: float


def record(num_bins: int, num_neurons: int, seed: int) -> Recording:
    """Simulate Poisson neurons with random preferred directions in the plane of the oscillator."""
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(num_neurons, 2))
    C /= math.sqrt(3) * np.linalg.norm(C, axis=1, keepdims=True)
    b = np.log(25 + 25 * rng.random(num_neurons))
    dynamics = VanDerPol(gamma=1.5, tau=(0.1, 0.1), dt=BIN_WIDTH, noise=0.1**2)
    model = Model(dynamics, Poisson(C, b, bin_width=BIN_WIDTH))
    states, counts = simulate(model, jax.random.key(seed), num_bins)
    return Recording(model, np.asarray(states), np.asarray(counts))


def stream(recording: Recording, realtime: bool = False, on_bin: OnBin | None = None) -> Estimate:
    """Give the filter, which knows the true model, one bin after the other.

    Args:
        recording: The experiment.
        realtime: Whether to hand over a bin only when it would be complete in the experiment.
        on_bin: Called after every bin with its index, the seconds it took and the carry, which
            begins with the mean.
    """
    start = time.perf_counter()
    step = CompiledStep(VariationalKalmanFilter(), recording.model)
    compile_s = time.perf_counter() - start
    seen = np.ones(recording.counts.shape[1], bool)
    carry = step.init()
    jax.block_until_ready(step(carry, recording.counts[0], seen))  # the first call is not typical
    carries, seconds = [], []
    begin = time.perf_counter()
    for t, counts in enumerate(recording.counts):
        if realtime:
            time.sleep(max(0.0, begin + (t + 1) * BIN_WIDTH - time.perf_counter()))
        start = time.perf_counter()
        carry = step(carry, counts, seen)
        carries.append(np.asarray(carry))
        seconds.append(time.perf_counter() - start)
        if on_bin is not None:
            on_bin(t, seconds[-1], carries[-1])
    stacked = jnp.asarray(np.stack(carries))
    belief, info = jax.vmap(step.state)(stacked).belief, jax.vmap(step.info)(stacked)
    mean, cov, info = jax.tree.map(np.asarray, (belief.mean, belief.cov, info))
    return Estimate(mean, cov, info, np.array(seconds), compile_s)


def std(estimate: Estimate) -> Float[np.ndarray, "T L"]:
    """Standard deviations of the filtering beliefs."""
    return np.sqrt(np.diagonal(estimate.cov, axis1=1, axis2=2))


def summarise(recording: Recording, estimate: Estimate) -> dict:
    """Accuracy and calibration, which depend on the seed alone, and timing, which does not."""
    error = estimate.mean - recording.states
    inside = np.abs(error) < Z90 * std(estimate)
    statuses = Counter(str(Status(int(status)).name) for status in estimate.info.status)
    micros = 1e6 * estimate.seconds
    return {
        "bins": recording.counts.shape[0],
        "neurons": recording.counts.shape[1],
        "spikes": int(recording.counts.sum()),
        "finite": bool(np.all(np.isfinite(estimate.mean)) and np.all(np.isfinite(estimate.cov))),
        "rmse": float(np.sqrt(np.mean(error**2))),
        "coverage_90": float(np.mean(inside)),
        "evaluations": float(np.mean(estimate.info.evaluations)),
        "statuses": dict(sorted(statuses.items())),
        "timing": {
            "bin_us": 1e6 * BIN_WIDTH,
            "median_us": float(np.median(micros)),
            "p99_us": float(np.percentile(micros, 99)),
            "late_bins": int(np.sum(estimate.seconds > BIN_WIDTH)),
            "compile_s": estimate.compile_s,
        },
    }


def sound(summary: dict) -> bool:
    """Whether every estimate is finite and none is a prediction fallen back to."""
    return summary["finite"] and not any("FELL_BACK" in name for name in summary["statuses"])


def describe(summary: dict) -> str:
    """The summary in a few lines for people."""
    timing = summary["timing"]
    statuses = ", ".join(f"{name} {count}" for name, count in summary["statuses"].items())
    rows = [
        ("recording", f"{summary['bins']} bins, {summary['neurons']} neurons"),
        ("RMSE of the state", f"{summary['rmse']:.3f}"),
        ("90 % intervals", f"cover the truth {100 * summary['coverage_90']:.1f} % of the time"),
        ("evaluations per bin", f"{summary['evaluations']:.2f}"),
        (
            "time per bin",
            f"median {timing['median_us']:.0f} µs, p99 {timing['p99_us']:.0f} µs,"
            f" of {timing['bin_us']:.0f} µs; late bins: {timing['late_bins']}",
        ),
        ("status of the bins", statuses),
    ]
    return "\n".join(f"{name:20} {value}" for name, value in rows)


def draw(recording: Recording, estimate: Estimate) -> Figure:
    """The figure: spikes, inferred rates, latent states and their phase portrait."""
    likelihood = recording.model.likelihood
    assert isinstance(likelihood, Poisson)
    C, b = np.asarray(likelihood.C), np.asarray(likelihood.b)
    variance = np.einsum("ni,tij,nj->tn", C, estimate.cov, C)
    return stream_figure(
        bin_width=BIN_WIDTH,
        counts=recording.counts,
        states=recording.states,
        mean=estimate.mean,
        std=std(estimate),
        true_rates=np.exp(recording.states @ C.T + b),
        rates=np.exp(estimate.mean @ C.T + b + 0.5 * variance),
        order=np.argsort(np.arctan2(C[:, 1], C[:, 0])),
    )


class Ticker:
    """Progress of a stream: one live line in a terminal, a few plain lines elsewhere."""

    def __init__(self, console: Console, num_bins: int):
        self.console, self.num_bins = console, num_bins
        self.every = max(1, num_bins // (100 if console.is_terminal else 5))
        self.times: list[float] = []
        self.bar = Progress(
            TextColumn("streaming"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("bins  {task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=num_bins)

    def __enter__(self) -> "Ticker":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, t: int, seconds: float, carry: Float[np.ndarray, " D"]) -> None:
        self.times.append(seconds)
        done = t + 1
        if done % self.every and done != self.num_bins:
            return
        micros, self.times = 1e6 * float(np.median(self.times)), []
        note = f"{micros:4.0f} µs per bin  state ({carry[0]:+.2f}, {carry[1]:+.2f})"
        if self.console.is_terminal:
            self.bar.update(self.task, completed=done, description=note)
        else:
            self.console.print(f"{done}/{self.num_bins} bins  {note}")

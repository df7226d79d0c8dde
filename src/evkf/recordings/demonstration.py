"""The demonstration of `evkf demo`: infer a latent oscillator and learn its dynamics from spikes.

A Van der Pol oscillator drives the rates of simulated Poisson neurons. Only spikes are given to the
learner. The first bins (warm-up) give a first readout (the weights C and offsets b that relate
latent states to rates). Then dynamics, noise and readout are learned bin by bin. The simulation is
the Poisson case of fig:vdp_dynamics and table:vdp in the paper, and draws C and b as the first
author's public code does.
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

from evkf.analysis.forecasting import forecast
from evkf.analysis.metrics import affine_map, affine_r2, coverage
from evkf.analysis.phase import grid, velocity_field
from evkf.dynamics import GaussianDynamics, ResidualMLP, VanDerPol
from evkf.filters import Info, VariationalKalmanFilter
from evkf.learning import CompiledLearner, Learner, warm_up
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate
from evkf.plotting.learning import Field, LearningData, learning_figure
from evkf.types import Status

BIN_WIDTH = 0.005
"""Bin width in seconds."""
WARM_UP = 400
"""Largest number of warm-up bins, from which the first readout is estimated."""
AHEAD = 5
"""Number of bins that forecasts reach ahead."""

OnBin = Callable[[int, float, Float[np.ndarray, " L"]], None]


class DemoRecording(NamedTuple):
    """A simulated recording and the truth.

    Attributes:
        model: The model that was simulated.
        states: True latent states, (bins, latents).
        counts: Spike counts, (bins, neurons).
        bin_width: Bin width in seconds.
        readout_known: True if estimated latent states have the same coordinates as the true latent
            states; False if a map between the coordinates must be fitted.
    """

    model: Model
    states: Float[np.ndarray, "T L"]
    counts: Float[np.ndarray, "T N"]
    bin_width: float = BIN_WIDTH
    readout_known: bool = False


class DemoEstimates(NamedTuple):
    """Estimates, learned models and computing times of a demonstration.

    Attributes:
        mean: Filtering means, in the coordinates of the learned model, (bins, latents).
        cov: Filtering covariances, in the coordinates of the learned model,
            (bins, latents, latents).
        info: Diagnostics of the filter for each bin.
        seconds: Computing time from the counts of a bin to the estimate of the bin, in seconds,
            (bins,); empty if not measured.
        learn_seconds: Computing time of learning after each estimate, in seconds, (bins,).
        compile_s: Computing time of warm-up and compilation, in seconds.
        early: The learned model just after the warm-up bins.
        late: The learned model after the last bin.
    """

    mean: Float[np.ndarray, "T L"]
    cov: Float[np.ndarray, "T L L"]
    info: Info
    seconds: Float[np.ndarray, " T"]
    learn_seconds: Float[np.ndarray, " T"]
    compile_s: float
    early: Model
    late: Model


class AlignedStates(NamedTuple):
    """Estimated latent states, mapped to the coordinates of the true latent states.

    Attributes:
        weight: Weights of the affine map, which multiply a mean (a row) from the right.
        offset: Offset of the affine map.
        mean: Mapped filtering means, (bins, latents).
        cov: Mapped filtering covariances, (bins, latents, latents).
    """

    weight: Float[np.ndarray, "L L"]
    offset: Float[np.ndarray, " L"]
    mean: Float[np.ndarray, "T L"]
    cov: Float[np.ndarray, "T L L"]


def simulate_neurons(num_bins: int, num_neurons: int, seed: int) -> DemoRecording:
    """Return a simulated recording of Poisson neurons driven by a Van der Pol oscillator.

    The neurons have random preferred directions in the plane of the two latent dimensions.

    Args:
        num_bins: Number of bins, each of `BIN_WIDTH` seconds.
        num_neurons: Number of neurons.
        seed: Seed of the readout and of the simulation.
    """
    rng = np.random.default_rng(seed)
    C = rng.normal(size=(num_neurons, 2))
    C /= math.sqrt(3) * np.linalg.norm(C, axis=1, keepdims=True)
    b = np.log(25 + 25 * rng.random(num_neurons))
    dynamics = VanDerPol(gamma=1.5, tau=(0.1, 0.1), dt=BIN_WIDTH, noise=0.1**2)
    model = Model(dynamics, Poisson(C, b, bin_width=BIN_WIDTH))
    states, counts = simulate(model, jax.random.key(seed), num_bins)
    return DemoRecording(model, np.asarray(states), np.asarray(counts))


def stream(
    counts: Float[np.ndarray, "T N"],
    seed: int = 0,
    realtime: bool = False,
    on_bin: OnBin | None = None,
) -> DemoEstimates:
    """Infer latent states and learn the model from spikes, bin by bin; return estimates and models.

    Args:
        counts: Spike counts, (bins, neurons).
        seed: Seed of the initial weights of the network that learns the dynamics.
        realtime: True to wait before each bin until the bin would be complete in an experiment
            (no waiting in the warm-up bins).
        on_bin: Function called after each bin. Its arguments are the index of the bin, the seconds
            from counts to estimate, and the filtering mean.
    """
    begin = time.perf_counter()
    first = min(WARM_UP, len(counts) // 4)
    likelihood = warm_up(counts[:first], 2, "poisson", BIN_WIDTH)
    start = Model(ResidualMLP(2, 0.05, jax.random.key(seed)), likelihood)
    learner = Learner(parts=("dynamics", "noise", "readout"), ring=max(64, min(4096, len(counts))))
    live = CompiledLearner(learner, start)
    compile_s = time.perf_counter() - begin
    results, seconds, learn_seconds, early = [], [], [], start
    begin = time.perf_counter() - first * BIN_WIDTH
    for t, y in enumerate(counts):
        if realtime:
            time.sleep(max(0.0, begin + (t + 1) * BIN_WIDTH - time.perf_counter()))
        before = time.perf_counter()
        result = jax.device_get(live.observe(y))
        between = time.perf_counter()
        jax.block_until_ready(live.learn())
        seconds.append(between - before)
        learn_seconds.append(time.perf_counter() - between)
        results.append(live.read(result))
        if t == first:
            early = live.state.model
        if on_bin is not None:
            on_bin(t, seconds[-1], results[-1].belief.mean)
    belief, info = jax.tree.map(lambda *x: np.stack(x), *(each[:2] for each in results))
    mean, cov = belief
    times = (np.array(seconds), np.array(learn_seconds))
    return DemoEstimates(mean, cov, info, *times, compile_s, early, live.state.model)


def align(recording: DemoRecording, estimate: DemoEstimates) -> AlignedStates:
    """Return estimated latent states in the coordinates of the true latent states.

    The affine map between the coordinates is fitted to the second half of the bins. If
    `recording.readout_known`, estimates are returned unchanged.

    Args:
        recording: The simulated recording.
        estimate: Estimates from this recording.
    """
    if recording.readout_known:
        dim = estimate.mean.shape[1]
        return AlignedStates(np.eye(dim), np.zeros(dim), estimate.mean, estimate.cov)
    half = len(estimate.mean) // 2
    weight, offset = affine_map(estimate.mean[half:], recording.states[half:])
    cov = np.einsum("li,tlk,kj->tij", weight, estimate.cov, weight)
    return AlignedStates(weight, offset, estimate.mean @ weight + offset, cov)


def forecasts(
    model: Model, estimate: DemoEstimates, aligned: AlignedStates, bins: range
) -> Float[np.ndarray, "B H L"]:
    """Return forecast paths from given bins, in the coordinates of the true latent states.

    Args:
        model: The learned model that forecasts.
        estimate: Filtering means and covariances, from which forecasts begin.
        aligned: Map to the coordinates of the true latent states.
        bins: Indices of the bins from which forecasts begin.

    Returns:
        Paths, (bins, 1 + `AHEAD`, latents). Each path begins at the filtering mean of its bin.
    """
    filter = VariationalKalmanFilter()

    @jax.jit
    def ahead(mean: jax.Array, cov: jax.Array) -> jax.Array:
        belief = model.family.from_moments(mean, cov)
        return forecast(filter, model, belief, AHEAD).mean

    means, covs = jnp.asarray(estimate.mean), jnp.asarray(estimate.cov)
    paths = jnp.stack([jnp.vstack([means[t], ahead(means[t], covs[t])]) for t in bins])
    return np.asarray(paths) @ aligned.weight + aligned.offset


def stretches(num_bins: int) -> tuple[range, range]:
    """Return two ranges of bins from which forecasts begin: early in learning, and late.

    The first range begins just after the warm-up bins. The second range ends `AHEAD` bins before
    the end, so that every forecast can be compared with the truth. Each range has 200 bins, or an
    eighth of all bins if this is less.

    Args:
        num_bins: Number of bins of the recording.
    """
    first, num = min(WARM_UP, num_bins // 4), min(200, num_bins // 8)
    return range(first, first + num), range(num_bins - AHEAD - num, num_bins - AHEAD)


def summarise(recording: DemoRecording, estimate: DemoEstimates) -> dict:
    """Return a dictionary of accuracy, calibration and computing times.

    Accuracy and calibration are computed from the last quarter of the bins, except for forecasts.
    Given the numbers of bins and neurons, all values except computing times depend only on the
    seed.

    Args:
        recording: The simulated recording.
        estimate: Estimates from this recording.
    """
    num_bins, num_neurons = recording.counts.shape
    aligned, last = align(recording, estimate), slice(3 * num_bins // 4, None)
    error = aligned.mean[last] - recording.states[last]
    statuses = Counter(str(Status(int(status)).name) for status in estimate.info.status)
    ahead = {}
    parts = zip(("start", "end"), (estimate.early, estimate.late), stretches(num_bins), strict=True)
    for name, model, bins in parts:
        paths = forecasts(model, estimate, aligned, bins)
        truth = recording.states[bins.start + AHEAD : bins.stop + AHEAD]
        ahead[name] = float(np.sqrt(np.mean((paths[:, -1] - truth) ** 2)))
    timing: dict = {"bin_us": 1e6 * recording.bin_width}
    if len(estimate.seconds):
        late = estimate.seconds + estimate.learn_seconds > recording.bin_width
        for name, seconds in (
            ("estimate", estimate.seconds),
            ("learning", estimate.learn_seconds),
        ):
            micros = 1e6 * seconds
            p99 = float(np.percentile(micros, 99))
            timing[name] = {"median_us": float(np.median(micros)), "p99_us": p99}
        timing |= {"late_bins": int(np.sum(late)), "compile_s": estimate.compile_s}
    finite = all(np.all(np.isfinite(x)) for x in (estimate.mean, estimate.cov))
    return {
        "bins": num_bins,
        "neurons": num_neurons,
        "spikes": int(recording.counts.sum()),
        "finite": bool(finite),
        "r2": affine_r2(estimate.mean[last], recording.states[last]),
        "rmse": float(np.sqrt(np.mean(error**2))),
        "coverage_90": coverage(aligned.mean[last], aligned.cov[last], recording.states[last]),
        "forecast_rmse": ahead,
        "evaluations": float(np.mean(estimate.info.evaluations)),
        "statuses": dict(sorted(statuses.items())),
        "timing": timing,
    }


def sound(summary: dict) -> bool:
    """Return True if all estimates are finite and no bin has the status `FELL_BACK`.

    This status means that an update failed and the prediction was used instead.

    Args:
        summary: Result of `summarise`.
    """
    return summary["finite"] and not any("FELL_BACK" in name for name in summary["statuses"])


def describe(summary: dict) -> str:
    """Return a summary (result of `summarise`) as a few lines of text."""
    timing, ahead = summary["timing"], summary["forecast_rmse"]
    times = [
        f"{name} {timing[name]['median_us']:.0f} µs (p99 {timing[name]['p99_us']:.0f})"
        for name in ("estimate", "learning")
        if name in timing
    ]
    late = f"late bins: {timing['late_bins']}"
    statuses = ", ".join(f"{name} {count}" for name, count in summary["statuses"].items())
    rows = [
        ("recording", f"{summary['bins']} bins, {summary['neurons']} neurons"),
        ("state, last quarter", f"R² {summary['r2']:.3f}, RMSE {summary['rmse']:.3f}"),
        ("90 % intervals", f"cover the truth {100 * summary['coverage_90']:.1f} % of the time"),
        (
            f"forecast {AHEAD} bins",
            f"RMSE {ahead['start']:.3f} at the start, {ahead['end']:.3f} at the end",
        ),
        ("time per bin", f"{', '.join(times)}, of {timing['bin_us']:.0f} µs; {late}"),
        ("status of the bins", statuses),
    ]
    return "\n".join(f"{name:20} {value}" for name, value in rows)


def draw(recording: DemoRecording, estimate: DemoEstimates) -> Figure:
    """Return a figure of spikes, rates, latent states, velocity fields and forecasts.

    At most the last 1000 bins are plotted; forecasts begin in the two ranges of `stretches`.

    Args:
        recording: The simulated recording.
        estimate: Estimates from this recording.
    """
    aligned = align(recording, estimate)
    likelihood = estimate.late.likelihood
    assert isinstance(likelihood, Poisson)
    C, b = np.asarray(likelihood.C), np.asarray(likelihood.b)
    variance = np.einsum("ni,tij,nj->tn", C, estimate.cov, C)
    shown = slice(-min(1000, len(estimate.mean)), None)
    true_C = np.asarray(recording.model.likelihood.C)  # pyright: ignore[reportAttributeAccessIssue]
    limit = 1.15 * np.abs(recording.states).max(axis=0)
    points = np.asarray(grid(-limit, limit, 25))

    def field(model: Model, weight: np.ndarray, offset: np.ndarray) -> Field:
        assert isinstance(model.dynamics, GaussianDynamics)
        own = (points - offset) @ np.linalg.inv(weight)
        width = recording.bin_width
        velocities = np.asarray(velocity_field(model.dynamics, own, bin_width=width))
        return Field(points, velocities @ weight)

    early, late = stretches(len(estimate.mean))
    paths = [
        forecasts(model, estimate, aligned, bins[:: AHEAD + 1])
        for model, bins in ((estimate.early, early), (estimate.late, late))
    ]
    data = LearningData(
        bin_width=recording.bin_width,
        start=len(estimate.mean) - len(estimate.mean[shown]),
        counts=recording.counts[shown],
        states=recording.states[shown],
        mean=aligned.mean[shown],
        std=np.sqrt(np.diagonal(aligned.cov[shown], axis1=1, axis2=2)),
        rates=np.exp(estimate.mean @ C.T + b + 0.5 * variance)[shown],
        order=np.argsort(np.arctan2(true_C[:, 1], true_C[:, 0])),
        fields=(
            field(recording.model, np.eye(2), np.zeros(2)),
            field(estimate.late, aligned.weight, aligned.offset),
        ),
        forecasts=(paths[0], paths[1]),
        followed=(
            recording.states[early.start : early.stop],
            recording.states[late.start : late.stop],
        ),
    )
    return learning_figure(data)


class Ticker:
    """Progress display for `stream`: one updated line in a terminal, about 5 plain lines elsewhere.

    Use a `Ticker` in a `with` statement and as the argument `on_bin` of `stream`.

    Args:
        console: Console to print to.
        num_bins: Number of bins of the recording.
    """

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

    def __call__(self, t: int, seconds: float, mean: Float[np.ndarray, " L"]) -> None:
        self.times.append(seconds)
        done = t + 1
        if done % self.every and done != self.num_bins:
            return
        micros, self.times = 1e6 * float(np.median(self.times)), []
        note = f"{micros:4.0f} µs per bin  state ({mean[0]:+.2f}, {mean[1]:+.2f})"
        if self.console.is_terminal:
            self.bar.update(self.task, completed=done, description=note)
        else:
            self.console.print(f"{done}/{self.num_bins} bins  {note}")

"""Figure of the reaching experiment (fig:mc_maze): latents, reaches and rates of the test half."""

from typing import NamedTuple, cast

import matplotlib
import numpy as np
from jaxtyping import Float, Int, Shaped
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from evkf.analysis.decoding import integrate
from evkf.analysis.spike_metrics import condition_averages
from evkf.plotting.recordings import Event, aligned_rates, by_direction, hand_paths, latent_paths
from evkf.plotting.style import STYLE
from evkf.recordings.halves import Halves, Pair
from evkf.recordings.units import UnitModel, infer
from evkf.reproduce.reaching.experiment import Reaches

UNITS = 4
"""Number of units whose rates are plotted."""


class DecodedReaches(NamedTuple):
    """Latents, reaches and rates of the test half, for the figure.

    Attributes:
        latents: Filtered latents, projected onto a plane.
        true: True hand positions.
        decoded: Decoded hand positions.
        rates: Inferred firing rates.
        labels: Condition of each trial.
        r2: R² of the decoded velocity.
    """

    latents: Float[np.ndarray, "T 2"]
    true: Float[np.ndarray, "T 2"]
    decoded: Float[np.ndarray, "T 2"]
    rates: Float[np.ndarray, "T N"]
    labels: Shaped[np.ndarray, " K"]
    r2: float


def decode_reaches(reaches: Reaches, parts: Halves, model: UnitModel) -> DecodedReaches:
    """Filter and decode the test half, and return what the figure shows.

    Decoded positions are sums of the decoded velocity, from the true position at the start of each
    trial. If the recording has no positions, true positions are sums of the true velocity from
    zero.
    """
    train, test = infer(model, parts.train), infer(model, parts.test)
    assert train.rates is not None and test.rates is not None  # noqa: PT018
    rates = Pair(train.rates, test.rates)
    velocity, score = parts.decoded(rates), parts.behaviour_r2(rates)
    assert velocity is not None
    assert score is not None
    half = parts.test
    if reaches.position is None:
        zeros = np.zeros((half.num_trials, 2))
        true = half.behaviour[reaches.velocity]
        true = integrate(true, half.bin_width, half.lengths, zeros)
    else:
        true = half.behaviour[reaches.position]
    starts = true[half.fresh]
    decoded = integrate(velocity, half.bin_width, half.lengths, starts)
    none = np.zeros(half.num_trials, int)
    labels = none if reaches.condition is None else half.trials[reaches.condition]
    latents = best_plane(test.mean, half.lengths, labels)
    return DecodedReaches(latents, true, decoded, test.rates, labels, score)


def draw(reaches: Reaches, parts: Halves, shown: DecodedReaches) -> Figure:
    """Plot the figure of the reaching experiment, and return it.

    Panel A shows the latents, B the true reaches, C the decoded reaches, and D the rates of a few
    units, whose condition averages vary most.
    """
    half, labels = parts.test, shown.labels
    colours = by_direction(shown.true, half.lengths, labels)
    with matplotlib.rc_context(STYLE):
        layout = ConstrainedLayoutEngine(hspace=0.06, wspace=0.04)
        figure = Figure(figsize=(11, 6.8), layout=layout)
        top, bottom = cast(np.ndarray, figure.subfigures(2, 1, height_ratios=[1.25, 1]))
        plane, true, decoded = top.subplots(1, 3, width_ratios=[1, 1.1, 1.1])
        panels = bottom.subplots(1, UNITS)
    latent_paths(plane, shown.latents, half.lengths, labels, colours=colours)
    plane.set(xlabel="1st axis of the latents (a.u.)", ylabel="2nd axis of the latents (a.u.)")
    hand_paths(true, shown.true, half.lengths, labels, colours=colours)
    hand_paths(decoded, shown.decoded, half.lengths, labels, colours=colours)
    corners = [corner for ax in (true, decoded) for corner in (ax.dataLim.min, ax.dataLim.max)]
    for ax in (true, decoded):  # the same limits for true and decoded
        ax.update_datalim(corners)
        ax.autoscale_view()
    events = np.full(half.num_trials, reaches.when)
    chosen = most_modulated(shown.rates, half.lengths, labels, UNITS)
    for ax, unit in zip(panels, chosen, strict=False):
        rates, width = shown.rates[:, unit], half.bin_width
        aligned_rates(ax, rates, half.lengths, labels, width, Event(events, reaches.event), colours)
        ax.set_title(f"Unit {half.units['id'][unit]}", loc="left", weight="normal", size=8.5)
        ax.set_ylabel("rate (spikes/s)" if ax is panels[0] else "")
    for ax in panels[len(chosen) :]:
        ax.remove()
    titles = {
        plane: "A  Latents, dots at the start",
        true: "B  True reaches, dots at the end",
        decoded: f"C  Decoded reaches, velocity R² {shown.r2:.2f}",
    }
    for ax, title in titles.items():
        ax.set_title(title, loc="left", weight="bold", size=9.5)
    text = (
        "D  Inferred rates: single trials thin, averages thick; all colours by direction of reach"
    )
    bottom.suptitle(text, x=0.005, ha="left", weight="bold", size=9.5)
    return figure


def best_plane(
    states: Float[np.ndarray, "T L"],
    lengths: tuple[int, ...],
    labels: Shaped[np.ndarray, " K"],
) -> Float[np.ndarray, "T 2"]:
    """Project latent states onto the first two principal axes of their averages over conditions.

    Return the coordinates in this plane. If there is only one axis, the second coordinate is 0.

    Args:
        states: Filtered latents of all bins.
        lengths: Number of bins of each trial.
        labels: Condition of each trial.

    Example:
        >>> states = np.array([[0.0, 3, 0], [0, -3, 1], [0, 3, 0], [0, -3, 1]])
        >>> np.abs(best_plane(states, (2, 2), np.zeros(2, int))[:, 0]).round(1)
        array([3., 3., 3., 3.])
    """
    means, centre = condition_averages(states, lengths, labels), states.mean(axis=0)
    _, _, axes = np.linalg.svd(means - means.mean(axis=0), full_matrices=False)
    plane = (states - centre) @ axes[:2].T
    return np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))


def most_modulated(
    rates: Float[np.ndarray, "T N"],
    lengths: tuple[int, ...],
    labels: Shaped[np.ndarray, " K"],
    num: int,
) -> Int[np.ndarray, " M"]:
    """Return the indices of the `num` units whose condition averages vary most, in falling order.

    Args:
        rates: Firing rates of all bins.
        lengths: Number of bins of each trial.
        labels: Condition of each trial.
        num: Number of units.

    Example:
        >>> rates = np.array([[1.0, 0, 5], [1, 9, 6], [1, 0, 5], [1, 9, 6]])
        >>> most_modulated(rates, (2, 2), np.zeros(2, int), 2).tolist()
        [1, 2]
    """
    return np.argsort(-condition_averages(rates, lengths, labels).std(axis=0), kind="stable")[:num]

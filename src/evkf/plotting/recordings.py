"""Plots of recordings. Each function plots into given matplotlib axes and returns these axes.

Use `new_axes` or any other matplotlib axes. The style is that of `evkf.plotting.style`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from evkf.analysis.decoding import integrate
from evkf.analysis.spike_metrics import smooth_trials
from evkf.errors import InputError
from evkf.numerics.trials import Lengths, aligned, read_bins, slices
from evkf.plotting.checks import calibration, dispersion_check
from evkf.plotting.colours import Colours, Labels, by_condition, by_direction
from evkf.plotting.style import BAND, MUTED, TRUTH, new_axes, styled

__all__ = [
    "Event",
    "aligned_rates",
    "by_condition",
    "by_direction",
    "calibration",
    "decoded_paths",
    "dispersion_check",
    "hand_paths",
    "latent_paths",
    "legend",
    "new_axes",
    "raster",
    "reaches",
]

SEEN = (0, (3, 1.5))
"""Line style (dashes) of measured quantities; inferred quantities have solid lines."""
PATHS = {"decoded": "-", "true path": SEEN}
SD_S = 0.04
"""Standard deviation in seconds of the Gaussian kernel that smooths spikes in `aligned_rates`."""
RATES = {"inferred": "-", f"spikes (SD {1e3 * SD_S:g} ms)": SEEN}
"""Names and styles of lines in `aligned_rates`, for `legend`."""
LIGHT = LinearSegmentedColormap.from_list("light", ["#ffffff", BAND, "#3f9bd1"], 40)
"""Colour map of rates in `raster`: light, so that black spikes stay visible."""
MOST = 0.9
"""The colour scale of `raster` ends at this quantile (over units) of the highest rate of each
unit."""
NAMED = 12
"""Largest number of conditions in a legend; for more conditions there is none."""


class Event(NamedTuple):
    """An event that happens once in each trial, such as a go cue; rates are aligned to this event.

    Attributes:
        times: Time of the event in each trial, in seconds since the start of the trial, (trials,).
        name: Name of the event in the label of the time axis.
    """

    times: Float[np.ndarray, " K"] | Sequence[float]
    name: str = "event"


@styled
def raster(
    ax: Axes,
    counts: Shaped[np.ndarray, "T N"],
    rates: Float[np.ndarray, "T N"],
    bin_width: float,
    start: float = 0.0,
    units: Sequence | np.ndarray | None = None,
    event: str | None = None,
) -> Axes:
    """Plot spikes as ticks on top of inferred rates as colours, and return the axes.

    Units are plotted in the given order. Spikes of one bin are spread evenly over the bin. The
    colour scale ends at the 0.9 quantile over units of each unit's highest rate, so that a few very
    active units do not make all other units pale.

    Args:
        ax: Axes to plot into.
        counts: Spike counts of consecutive bins, (bins, units).
        rates: Inferred rates in spikes per second, (bins, units).
        bin_width: Bin width in seconds.
        start: Start of the first bin in seconds.
        units: Ids of the units, for the vertical axis; numbered from zero when left out.
        event: Name of the event at time zero, which is marked by a line. When left out, there is
            no line, and time is that of the session.

    Example:
        >>> counts = np.array([[1, 0], [0, 2]])
        >>> ax = raster(new_axes(), counts, counts / 0.02, 0.02)
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('time (s)', 'unit')
    """
    y, seen = read_bins(counts, "counts").astype(int), read_bins(rates, "rates")
    bins, num = y.shape
    ids = np.arange(num) if units is None else np.asarray(units)
    if ids.shape != (num,):
        raise InputError(f"units of shape {ids.shape}", "units", f"pass an id for each of {num}")
    top = float(np.quantile(seen.max(axis=0), MOST))
    image = ax.imshow(
        seen.T,
        LIGHT,
        vmin=0,
        vmax=max(top, 1e-9),
        aspect="auto",
        origin="lower",
        extent=(start, start + bins * bin_width, -0.5, num - 0.5),
    )
    bin_of, unit = np.nonzero(y)
    many = y[bin_of, unit]
    nth = np.concatenate([(np.arange(n) + 0.5) / n for n in many]) if len(many) else np.zeros(0)
    times = start + bin_width * (np.repeat(bin_of, many) + nth)
    at = np.repeat(unit, many)
    ax.vlines(times, at - 0.4, at + 0.4, color=TRUTH, lw=0.9)
    if event is not None and start <= 0 <= start + bins * bin_width:
        ax.axvline(0, color=MUTED, lw=0.9, ls=(0, (4, 3)))
    bar = ax.figure.colorbar(
        image,
        ax=ax,
        pad=0.015,
        aspect=30,
        label="inferred rate (spikes/s)",
        extend="max" if seen.max() > top else "neither",
    )
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(length=0)
    # if ids are ascending whole numbers, label units whose ids are round numbers
    ticks, named = MaxNLocator(8, integer=True), []
    if ids.dtype.kind in "iu" and np.all(np.diff(ids) > 0):
        named = np.flatnonzero(np.isin(ids, ticks.tick_values(int(ids[0]), int(ids[-1])))).tolist()
    if len(named) < 2:
        named = sorted({int(row) for row in ticks.tick_values(0, num - 1) if 0 <= row < num})
    ax.set_yticks(named, [str(ids[row]) for row in named])
    width = f"{1e3 * bin_width:g} ms"
    ax.set(xlabel="time (s)" if event is None else f"time from {event} (s)", ylabel="unit")
    ax.set_title(f"Spikes in bins of {width}, and inferred rates")
    return ax


@styled
def latent_paths(
    ax: Axes,
    states: Float[np.ndarray, "T L"],
    lengths: Lengths,
    conditions: Labels,
    dimensions: tuple[int, int] = (0, 1),
    colours: Colours | None = None,
) -> Axes:
    """Plot two latent dimensions of single trials, coloured by condition, and return the axes.

    A dot marks the first bin of each trial.

    Args:
        ax: Axes to plot into.
        states: Latent states, (bins, latents).
        lengths: Number of bins of each trial.
        conditions: Condition of each trial.
        dimensions: Indices of the two latent dimensions, from zero.
        colours: Colour of each condition. When left out, colours are chosen and a legend is added;
            otherwise there is no legend.

    Example:
        >>> states = np.random.default_rng(0).normal(size=(20, 2)).cumsum(axis=0)
        >>> len(latent_paths(new_axes(), states, (10, 10), ["left", "right"]).lines)
        4
    """
    x = read_bins(states, "states")
    pair = list(dimensions)
    chosen = by_condition(conditions, len(lengths)) if colours is None else colours
    for trial, label in zip(slices(lengths, len(x)), np.asarray(conditions), strict=True):
        path = x[trial][:, pair]
        ax.plot(*path.T, color=chosen[label.item()], lw=0.7, alpha=0.55)
        ax.plot(*path[0], "o", color=chosen[label.item()], ms=2.6, mew=0)
    ax.set(xlabel=f"{_axis(pair[0])} (a.u.)", ylabel=f"{_axis(pair[1])} (a.u.)")
    of = f" ({_axis(pair[0])}, {_axis(pair[1])} of {x.shape[1]})" if x.shape[1] > 2 else ""
    ax.set_title(f"Single trials, dots at their start{of}")
    if colours is None:
        legend(ax, chosen)
    return ax


def _axis(dimension: int) -> str:
    return f"$z_{{{dimension + 1}}}$"


@styled
def hand_paths(
    ax: Axes,
    positions: Float[np.ndarray, "T 2"],
    lengths: Lengths,
    conditions: Labels,
    unit: str = "mm",
    colours: Colours | None = None,
) -> Axes:
    """Plot hand positions of single trials, coloured by condition, and return the axes.

    A dot marks the last bin of each trial.

    Args:
        ax: Axes to plot into.
        positions: Position of the hand in each bin, (bins, 2).
        lengths: Number of bins of each trial.
        conditions: Condition of each trial.
        unit: Unit of the positions, for axis labels.
        colours: Colour of each condition; those of `by_direction` when left out.

    Example:
        >>> path = np.arange(20.0).reshape(10, 2)
        >>> len(hand_paths(new_axes(), path, (5, 5), ["up", "down"]).lines)
        4
    """
    path = read_bins(positions, "positions")
    chosen = by_direction(path, lengths, conditions) if colours is None else colours
    for trial, label in zip(slices(lengths, len(path)), np.asarray(conditions), strict=True):
        ax.plot(*path[trial].T, color=chosen[label.item()], lw=0.8, alpha=0.75)
        ax.plot(*path[trial][-1], "o", color=chosen[label.item()], ms=3, mew=0)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set(xlabel=f"x ({unit})", ylabel=f"y ({unit})", title="Reaches, dots at their end")
    return ax


@styled
def reaches(
    ax: Axes,
    positions: Float[np.ndarray, "T 2"],
    velocities: Float[np.ndarray, "T 2"],
    lengths: Lengths,
    conditions: Labels,
    bin_width: float,
    unit: str = "mm",
    colours: Colours | None = None,
) -> Axes:
    """Plot true reaches and reaches integrated from decoded velocities, and return the axes.

    Decoded velocities are integrated from the true position in the first bin of each trial.

    Args:
        ax: Axes to plot into.
        positions: True positions, (bins, 2).
        velocities: Decoded velocities, in units of the positions per second, (bins, 2).
        lengths: Number of bins of each trial.
        conditions: Condition of each trial.
        bin_width: Bin width in seconds.
        unit: Unit of the positions, for axis labels.
        colours: Colour of each condition. When left out, colours are chosen and a legend is added;
            otherwise there is no legend.

    Example:
        >>> velocities = np.tile([1.0, 2.0], (10, 1))
        >>> ax = reaches(new_axes(), 0.1 * velocities.cumsum(axis=0), velocities, (10,), ["a"], 0.1)
        >>> ax.get_xlabel()
        'x (mm)'
    """
    truth = read_bins(positions, "positions")
    starts = truth[[trial.start for trial in slices(lengths, len(truth))]]
    decoded = integrate(velocities, bin_width, lengths, starts)
    decoded_paths(ax, truth, decoded, lengths, conditions, unit, colours)
    ax.set_title("Reaches from decoded velocity")
    return ax


@styled
def decoded_paths(
    ax: Axes,
    positions: Float[np.ndarray, "T 2"],
    decoded: Float[np.ndarray, "T 2"],
    lengths: Lengths,
    conditions: Labels,
    unit: str = "mm",
    colours: Colours | None = None,
) -> Axes:
    """Plot true positions (dashed lines) and decoded positions (solid lines), and return the axes.

    A dot marks the first true position of each trial.

    Args:
        ax: Axes to plot into.
        positions: True positions, (bins, 2).
        decoded: Decoded positions, (bins, 2).
        lengths: Number of bins of each trial.
        conditions: Condition of each trial.
        unit: Unit of the positions, for axis labels.
        colours: Colour of each condition. When left out, colours are chosen and a legend is added;
            otherwise there is no legend.

    Example:
        >>> path = np.arange(20.0).reshape(10, 2)
        >>> len(decoded_paths(new_axes(), path, path + 1, (5, 5), ["up", "down"]).lines)
        5
    """
    truth, guess = read_bins(positions, "positions"), read_bins(decoded, "decoded")
    if guess.shape != truth.shape:
        what = f"decoded positions of shape {guess.shape}"
        raise InputError(what, "decoded", f"pass shape {truth.shape}, that of the true ones")
    trials = slices(lengths, len(truth))
    chosen = by_condition(conditions, len(trials)) if colours is None else colours
    for trial, label in zip(trials, np.asarray(conditions), strict=True):
        own = chosen[label.item()]
        ax.plot(*truth[trial].T, color=own, lw=0.9, ls=SEEN, alpha=0.7, zorder=1)
        ax.plot(*guess[trial].T, color=own, lw=0.9, alpha=0.85, zorder=2)
    starts = truth[[trial.start for trial in trials]]
    ax.plot(*starts.T, "o", color=TRUTH, ms=2.2, mew=0, zorder=3)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set(xlabel=f"x ({unit})", ylabel=f"y ({unit})", title="Decoded positions")
    if colours is None:
        legend(ax, chosen, lines=PATHS)
    return ax


@styled
def aligned_rates(
    ax: Axes,
    rates: Float[np.ndarray, " T"],
    lengths: Lengths,
    conditions: Labels,
    bin_width: float,
    event: Event,
    colours: Colours | None = None,
    spikes: Float[np.ndarray, " T"] | None = None,
) -> Axes:
    """Plot rates of one unit aligned to an event, coloured by condition, and return the axes.

    Thin lines are single trials and thick lines are averages over the trials of a condition. An
    average is plotted at the times where at least half of the trials of the condition have a bin.
    If spikes are given, dashed lines are averages of smoothed spikes, to compare with the rates.

    Args:
        ax: Axes to plot into.
        rates: Rate of the unit in each bin, in spikes per second, (bins,).
        lengths: Number of bins of each trial.
        conditions: Condition of each trial.
        bin_width: Bin width in seconds.
        event: The event to align to, which is plotted at time zero.
        colours: Colour of each condition. When left out, colours are chosen and a legend is added;
            otherwise there is no legend.
        spikes: Observed spikes in each bin divided by the bin width (spikes per second), (bins,);
            NaN where not observed. They are smoothed with a standard deviation of 40 ms.

    Example:
        >>> go = Event([0.1, 0.12], "go")
        >>> ax = aligned_rates(new_axes(), np.ones(20), (10, 10), [0, 0], 0.02, go)
        >>> ax.get_xlabel()
        'time from go (s)'
    """
    values = read_bins(np.asarray(rates)[:, None], "rates")[:, 0]
    trials, when = slices(lengths, len(values)), np.asarray(event.times, float)
    if when.shape != (len(trials),) or not np.isfinite(when).all():
        what = f"events of shape {when.shape}, or not finite"
        raise InputError(what, "events", f"pass seconds for each of the {len(trials)} trials")
    if spikes is not None and np.shape(spikes) != values.shape:
        what = f"spikes of shape {np.shape(spikes)}"
        raise InputError(what, "spikes", f"pass shape {values.shape}, that of the rates")
    labels = np.asarray(conditions)
    chosen = by_condition(conditions, len(trials)) if colours is None else colours
    shifts = np.round(when / bin_width).astype(int)
    first, grid = aligned(values, trials, shifts)
    times = bin_width * (first + np.arange(grid.shape[1]) + 0.5)

    def draw_average(rows: np.ndarray, **style: Any) -> None:
        """Plot the mean over rows (trials), where at least half of the trials have a bin."""
        there = np.isfinite(rows).sum(axis=0)
        average = np.nansum(rows, axis=0) / np.maximum(there, 1)
        shown = (2 * there >= len(rows)) & (there > 0)
        ax.plot(times, np.where(shown, average, np.nan), **style)

    ax.axvline(0, color=MUTED, lw=0.7, ls=(0, (4, 3)), zorder=0)
    for label, colour in chosen.items():
        own = grid[labels == label]
        ax.plot(times, own.T, color=colour, lw=0.5, alpha=0.25)
        draw_average(own, color=colour, lw=2)
    if spikes is not None:
        known, sd = np.isfinite(spikes)[:, None], SD_S / bin_width
        smooth = smooth_trials(np.asarray(spikes, float)[:, None], lengths, sd, known)
        _, seen = aligned(np.where(known, smooth, np.nan)[:, 0], trials, shifts)
        for label, colour in chosen.items():
            draw_average(seen[labels == label], color=colour, lw=1, ls=SEEN)
    ax.set(xlabel=f"time from {event.name} (s)", ylabel="rate (spikes/s)", ylim=(0, None))
    ax.set_title("Single trials and averages")
    if colours is None:
        legend(ax, chosen, lines={} if spikes is None else RATES)
    return ax


@styled
def legend(
    ax: Axes,
    colours: Colours,
    title: str | None = None,
    lines: Mapping[str, Any] | None = None,
) -> Axes:
    """Add a legend to the right of the axes, and return the axes.

    Conditions are listed if there are 2 to `NAMED` conditions, and line styles if there are any.

    Args:
        ax: Axes that contain the plot.
        colours: Colour of each condition.
        title: Title of the legend, such as the name of the column that holds the conditions.
        lines: Dictionary of names and line styles to list, such as `PATHS` or `RATES`.
    """
    named = dict(colours) if 1 < len(colours) <= NAMED else {}
    handles = [Line2D([], [], color=c, lw=2, label=str(name)) for name, c in named.items()]
    for name, style in (lines or {}).items():
        handles.append(Line2D([], [], color=TRUTH, lw=1.2, ls=style, label=name))
    if handles:
        ax.legend(
            handles=handles,
            title=title if named else None,
            loc="upper left",
            bbox_to_anchor=(1, 1),
            handlelength=1.8 if lines else 1,
        )
    return ax

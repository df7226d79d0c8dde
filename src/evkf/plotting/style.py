"""Figures: one style, one palette that colour-blind readers can tell apart."""

from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, ParamSpec

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import LogLocator, NullFormatter

TRUTH = "#1a1a1a"
ESTIMATE = "#0072b2"
MUTED = "#6f6f6f"
BAND = "#9ccbe8"
SPIKES = LinearSegmentedColormap.from_list("spikes", ["#ffffff", TRUTH])
RATES = LinearSegmentedColormap.from_list("rates", ["#ffffff", "#a6cee3", ESTIMATE, "#08306b"], 40)
"""Firing rates; few levels keep the files small."""
Z95 = 1.96
"""Half-width of a 95 % interval in standard deviations."""

P = ParamSpec("P")

STYLE: dict = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.labelcolor": TRUTH,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": TRUTH,
    "ytick.labelcolor": TRUTH,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "image.interpolation": "nearest",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "path",
}


def new_axes(width: float = 4.2, height: float = 3.2) -> Axes:
    """Axes of a figure of its own, in inches.

    Example:
        >>> ax = new_axes()
        >>> ax.figure.get_size_inches().tolist()
        [4.2, 3.2]
    """
    with matplotlib.rc_context(STYLE):
        return Figure(figsize=(width, height), layout="constrained").add_subplot()


def styled(draw: Callable[P, Axes]) -> Callable[P, Axes]:
    """Draw in the style of this module, whatever axes were made with."""

    @wraps(draw)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Axes:
        with matplotlib.rc_context(STYLE):
            ax = draw(*args, **kwargs)
            ax.spines[["top", "right"]].set_visible(False)
            return ax

    return inner


def log_numbers(ax: Axes) -> None:
    """A logarithmic axis upwards, with plain numbers that do not crowd.

    Example:
        >>> ax = new_axes()
        >>> log_numbers(ax)
        >>> ax.get_yscale()
        'log'
    """
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


class Field(NamedTuple):
    """Velocities on a grid of the plane, per second."""

    points: Float[np.ndarray, "G G 2"]
    velocities: Float[np.ndarray, "G G 2"]


def learning_figure(
    *,
    bin_width: float,
    start: int,
    counts: Float[np.ndarray, "T N"],
    states: Float[np.ndarray, "T 2"],
    mean: Float[np.ndarray, "T 2"],
    std: Float[np.ndarray, "T 2"],
    rates: Float[np.ndarray, "T N"],
    order: Int[np.ndarray, " N"],
    fields: tuple[Field, Field],
    forecasts: tuple[Float[np.ndarray, "B H 2"], Float[np.ndarray, "B H 2"]],
    followed: tuple[Float[np.ndarray, "S 2"], Float[np.ndarray, "S 2"]],
) -> Figure:
    """Spikes, inferred rates and states; true and learned velocity field; forecasts.

    Args:
        bin_width: Seconds.
        start: Bins before those drawn.
        counts: Spike counts.
        states: True states.
        mean: Filtering means.
        std: Filtering standard deviations.
        rates: Expected rates of the filtering beliefs, in spikes per second.
        order: Neurons in the order in which to draw them.
        fields: The true velocity field and the learned one.
        forecasts: Paths ahead at the start of learning and at its end.
        followed: What the true states did in those stretches.
    """
    times = bin_width * (start + 1 + np.arange(len(counts)))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12.4, 6.4), layout="constrained")
        grid = figure.add_gridspec(
            4, 3, width_ratios=[2.1, 1, 1], height_ratios=[1.2, 1.2, 0.9, 0.9]
        )
        raster = figure.add_subplot(grid[0, 0])
        heat_map, *latents = (figure.add_subplot(grid[row, 0], sharex=raster) for row in (1, 2, 3))
        planes = [figure.add_subplot(grid[:2, 1])]
        planes += [
            figure.add_subplot(place, sharex=planes[0], sharey=planes[0])
            for place in (grid[:2, 2], grid[2:, 1], grid[2:, 2])
        ]

        _raster(raster, times, counts[:, order])
        _heat_map(heat_map, times, rates[:, order])
        for i, axes in enumerate(latents):
            _compare(axes, times, states[:, i], mean[:, i], std[:, i])
            axes.set_ylabel(f"$z_{i + 1}$")
        colours, names = (TRUTH, ESTIMATE), ("True dynamics", "Learned dynamics")
        for axes, field, colour, name in zip(planes[:2], fields, colours, names, strict=True):
            _field(axes, field, colour)
            axes.set_title(name)
        for axes, paths, truth, when in zip(
            planes[2:], forecasts, followed, ("start", "end"), strict=True
        ):
            _forecasts(axes, paths, truth)
            axes.set_title(f"{paths.shape[1] - 1} bins ahead, at the {when}")
        planes[3].legend(loc="upper right")

        latents[0].set_title("Latent state")
        latents[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0)
        for axes in (raster, heat_map, latents[0]):
            axes.tick_params(labelbottom=False)
        for axes in (planes[0], planes[2]):
            axes.set_ylabel("$z_2$")
        for axes in planes[2:]:
            axes.set_xlabel("$z_1$")
        latents[1].set_xlabel("time (s)")
        raster.set_xlim(times[0] - bin_width, times[-1])
        corner = np.abs(fields[0].points).max(axis=(0, 1))
        planes[0].set_xlim(-corner[0], corner[0])
        planes[0].set_ylim(-corner[1], corner[1])
    return figure


def _raster(axes: Axes, times: Float[np.ndarray, " T"], counts: Float[np.ndarray, "T N"]) -> None:
    _image(axes, times, np.minimum(counts, 1), SPIKES, 1.0)
    axes.set_title("Spikes, neurons sorted by preferred direction")


def _heat_map(axes: Axes, times: Float[np.ndarray, " T"], rates: Float[np.ndarray, "T N"]) -> None:
    image = _image(axes, times, rates, RATES, float(np.percentile(rates, 99.5)))
    bar = axes.inset_axes((1.012, 0, 0.012, 1))
    axes.figure.colorbar(image, cax=bar, label="spikes/s", extend="max")
    bar.tick_params(length=0, pad=2)
    bar.spines[:].set_visible(False)
    axes.set_title("Inferred rates")


def _image(
    axes: Axes,
    times: Float[np.ndarray, " T"],
    values: Float[np.ndarray, "T N"],
    colours: Colormap,
    limit: float,
) -> AxesImage:
    """Neurons up, time to the right."""
    axes.set_ylabel("neuron")
    extent = (2 * times[0] - times[1], times[-1], 0.5, values.shape[1] + 0.5)
    return axes.imshow(
        values.T, colours, vmin=0, vmax=limit, aspect="auto", origin="lower", extent=extent
    )


def _compare(
    axes: Axes,
    times: Float[np.ndarray, " T"],
    truth: Float[np.ndarray, " T"],
    estimate: Float[np.ndarray, " T"],
    std: Float[np.ndarray, " T"],
) -> None:
    low, high = estimate - Z95 * std, estimate + Z95 * std
    axes.fill_between(times, low, high, color=BAND, lw=0, label="95 % interval")
    axes.plot(times, estimate, color=ESTIMATE, lw=1.7, label="estimate")
    axes.plot(times, truth, color=TRUTH, lw=0.6, label="truth")


def _field(axes: Axes, field: Field, colour: str) -> None:
    """Streamlines, wider where the flow is faster."""
    speed = np.linalg.norm(field.velocities, axis=-1)
    x, y = field.points[0, :, 0], field.points[:, 0, 1]
    width = 0.3 + 1.2 * np.sqrt(speed / speed.max())
    axes.streamplot(
        x,
        y,
        *np.moveaxis(field.velocities, -1, 0),
        color=colour,
        linewidth=width,
        density=1.1,
        arrowsize=0.7,
    )


def _forecasts(
    axes: Axes, paths: Float[np.ndarray, "B H 2"], truth: Float[np.ndarray, "S 2"]
) -> None:
    axes.plot(*truth.T, color=TRUTH, lw=0.6, label="truth")
    for i, path in enumerate(paths):
        name = "_forecast" if i else "forecast"
        axes.plot(*path.T, color=ESTIMATE, lw=1.6, solid_capstyle="round", label=name)
    axes.plot(*paths[:, 0].T, ".", color=ESTIMATE, ms=3)

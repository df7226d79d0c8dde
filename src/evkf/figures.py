"""Figures: one style, one palette that colour-blind readers can tell apart."""

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

TRUTH = "#1a1a1a"
ESTIMATE = "#0072b2"
MUTED = "#6f6f6f"
BAND = "#9ccbe8"
SPIKES = LinearSegmentedColormap.from_list("spikes", ["#ffffff", TRUTH])
RATES = LinearSegmentedColormap.from_list("rates", ["#ffffff", "#a6cee3", ESTIMATE, "#08306b"], 40)
"""Firing rates; few levels keep the files small."""
Z95 = 1.96
"""Half-width of a 95 % interval in standard deviations."""

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


def stream_figure(
    *,
    bin_width: float,
    counts: Float[np.ndarray, "T N"],
    states: Float[np.ndarray, "T 2"],
    mean: Float[np.ndarray, "T 2"],
    std: Float[np.ndarray, "T 2"],
    true_rates: Float[np.ndarray, "T N"],
    rates: Float[np.ndarray, "T N"],
    order: Int[np.ndarray, " N"],
) -> Figure:
    """Spikes, inferred rates, two latent states against the truth, and their phase portrait.

    Args:
        bin_width: Seconds.
        counts: Spike counts.
        states: True states.
        mean: Filtering means.
        std: Filtering standard deviations.
        true_rates: Rates of the true states, in spikes per second.
        rates: Expected rates of the filtering beliefs, in spikes per second.
        order: Neurons in the order in which to draw them.
    """
    times = bin_width * (1 + np.arange(len(counts)))
    places = (len(order) * np.array([5, 2])) // 6
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 6.2), layout="constrained")
        grid = figure.add_gridspec(
            4, 2, width_ratios=[2.2, 1], height_ratios=[1.25, 1.25, 0.9, 0.9]
        )
        raster = figure.add_subplot(grid[0, 0])
        heat_map, *latents = (figure.add_subplot(grid[row, 0], sharex=raster) for row in (1, 2, 3))
        portrait = figure.add_subplot(grid[:2, 1])
        neurons = [figure.add_subplot(grid[row, 1], sharex=raster) for row in (2, 3)]

        _raster(raster, times, counts[:, order])
        _heat_map(heat_map, times, rates[:, order])
        for i, axes in enumerate(latents):
            _compare(axes, times, states[:, i], mean[:, i], std[:, i])
            axes.set_ylabel(f"$z_{i + 1}$")
        for axes, place in zip(neurons, places, strict=True):
            _compare(axes, times, true_rates[:, order[place]], rates[:, order[place]])
            axes.set_ylim(bottom=0)
            axes.set_ylabel(f"neuron {place + 1}\nspikes/s")
        _portrait(portrait, states, mean)

        latents[0].set_title("Latent state")
        latents[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0)
        neurons[0].set_title("Rates of two neurons")
        for axes in (raster, heat_map, latents[0], neurons[0]):
            axes.tick_params(labelbottom=False)
        for axes in (latents[1], neurons[1]):
            axes.set_xlabel("time (s)")
        raster.set_xlim(0, times[-1])
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
    extent = (0, times[-1], 0.5, values.shape[1] + 0.5)
    return axes.imshow(
        values.T, colours, vmin=0, vmax=limit, aspect="auto", origin="lower", extent=extent
    )


def _compare(
    axes: Axes,
    times: Float[np.ndarray, " T"],
    truth: Float[np.ndarray, " T"],
    estimate: Float[np.ndarray, " T"],
    std: Float[np.ndarray, " T"] | None = None,
) -> None:
    if std is not None:
        low, high = estimate - Z95 * std, estimate + Z95 * std
        axes.fill_between(times, low, high, color=BAND, lw=0, label="95 % interval")
    axes.plot(times, estimate, color=ESTIMATE, lw=1.7, label="estimate")
    axes.plot(times, truth, color=TRUTH, lw=0.6, label="truth")


def _portrait(axes: Axes, states: Float[np.ndarray, "T 2"], mean: Float[np.ndarray, "T 2"]) -> None:
    axes.plot(*mean.T, color=ESTIMATE, lw=1.3, alpha=0.8)
    axes.plot(*states.T, color=TRUTH, lw=0.5, alpha=0.8)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("$z_1$")
    axes.set_ylabel("$z_2$")
    axes.set_title("Phase portrait")

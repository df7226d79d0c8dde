"""The plot of `evkf demo`: a simulated oscillator, inferred and learned from spikes."""

from typing import Any, NamedTuple

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure

from evkf.plotting.style import BAND, ESTIMATE, RATES, SPIKES, STYLE, TRUTH, Z95


class Field(NamedTuple):
    """Velocities on a grid of points in the plane.

    Attributes:
        points: Points of the grid.
        velocities: Velocity of the latent state at each point, per second.
    """

    points: Float[np.ndarray, "G G 2"]
    velocities: Float[np.ndarray, "G G 2"]


class LearningData(NamedTuple):
    """The data that `learning_figure` plots.

    Attributes:
        bin_width: Bin width in seconds.
        start: Number of bins before the first plotted bin.
        counts: Spike counts, (bins, neurons).
        states: True latent states, (bins, 2).
        mean: Filtering means, in the coordinates of the true latent states, (bins, 2).
        std: Filtering standard deviations, in the same coordinates as `mean`, (bins, 2).
        rates: Expected rates given the filtering beliefs, in spikes per second, (bins, neurons).
        order: Indices of the neurons in the order to plot, first neuron at the bottom.
        fields: True velocity field and learned velocity field.
        forecasts: Forecast paths at the start of learning, and forecast paths at the end of
            learning, each (paths, bins, 2).
        followed: True latent states in the bins where the forecasts begin: at the start of
            learning, and at the end of learning.
    """

    bin_width: float
    start: int
    counts: Float[np.ndarray, "T N"]
    states: Float[np.ndarray, "T 2"]
    mean: Float[np.ndarray, "T 2"]
    std: Float[np.ndarray, "T 2"]
    rates: Float[np.ndarray, "T N"]
    order: Int[np.ndarray, " N"]
    fields: tuple[Field, Field]
    forecasts: tuple[Float[np.ndarray, "B H 2"], Float[np.ndarray, "B H 2"]]
    followed: tuple[Float[np.ndarray, "S 2"], Float[np.ndarray, "S 2"]]


def learning_figure(data: LearningData) -> Figure:
    """Return a figure of spikes, inferred rates and latent states, velocity fields and forecasts.

    True and learned velocity fields are plotted next to each other, and so are forecasts at the
    start of learning and forecasts at the end of learning.
    """
    times = data.bin_width * (data.start + 1 + np.arange(len(data.counts)))
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

        # neurons upwards, time to the right
        extent = (2 * times[0] - times[1], times[-1], 0.5, len(data.order) + 0.5)
        place: dict[str, Any] = {"aspect": "auto", "origin": "lower", "extent": extent, "vmin": 0}
        raster.imshow(np.minimum(data.counts, 1)[:, data.order].T, SPIKES, vmax=1.0, **place)
        limit = float(np.percentile(data.rates, 99.5))
        image = heat_map.imshow(data.rates[:, data.order].T, RATES, vmax=limit, **place)
        for axes in (raster, heat_map):
            axes.set_ylabel("neuron")
        raster.set_title("Spikes, neurons sorted by preferred direction")
        bar = heat_map.inset_axes((1.012, 0, 0.012, 1))
        figure.colorbar(image, cax=bar, label="spikes/s", extend="max")
        bar.tick_params(length=0, pad=2)
        bar.spines[:].set_visible(False)
        heat_map.set_title("Inferred rates")
        for i, axes in enumerate(latents):
            mean, spread = data.mean[:, i], Z95 * data.std[:, i]
            low, high = mean - spread, mean + spread
            axes.fill_between(times, low, high, color=BAND, lw=0, label="95 % interval")
            axes.plot(times, mean, color=ESTIMATE, lw=1.7, label="estimate")
            axes.plot(times, data.states[:, i], color=TRUTH, lw=0.6, label="truth")
            axes.set_ylabel(f"$z_{i + 1}$")
        colours, names = (TRUTH, ESTIMATE), ("True dynamics", "Learned dynamics")
        for axes, field, colour, name in zip(planes[:2], data.fields, colours, names, strict=True):
            # streamlines, wider where the flow is faster
            speed = np.linalg.norm(field.velocities, axis=-1)
            x, y = field.points[0, :, 0], field.points[:, 0, 1]
            width = 0.3 + 1.2 * np.sqrt(speed / speed.max())
            flow = np.moveaxis(field.velocities, -1, 0)
            lines = {"linewidth": width, "density": 1.1, "arrowsize": 0.7}
            axes.streamplot(x, y, *flow, color=colour, **lines)
            axes.set_title(name)
        for axes, paths, truth, when in zip(
            planes[2:], data.forecasts, data.followed, ("start", "end"), strict=True
        ):
            axes.plot(*truth.T, color=TRUTH, lw=0.6, label="truth")
            style = {"color": ESTIMATE, "lw": 1.6, "solid_capstyle": "round"}
            for k, path in enumerate(paths):
                axes.plot(*path.T, **style, label="_forecast" if k else "forecast")
            axes.plot(*paths[:, 0].T, ".", color=ESTIMATE, ms=3)
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
        raster.set_xlim(times[0] - data.bin_width, times[-1])
        corner = np.abs(data.fields[0].points).max(axis=(0, 1))
        planes[0].set_xlim(-corner[0], corner[0])
        planes[0].set_ylim(-corner[1], corner[1])
    return figure

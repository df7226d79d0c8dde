"""Plots that check predicted counts: calibration and dispersion."""

from collections.abc import Sequence
from textwrap import wrap

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator
from scipy.stats import binom

from evkf.analysis.spike_metrics import Dispersion, dispersion_hint, over_dispersed
from evkf.errors import InputError
from evkf.plotting.style import BAND, ESTIMATE, TRUTH, new_axes, styled

__all__ = ["calibration", "dispersion_check", "new_axes"]

OVER = "#d55e00"
BAND_LEVEL = 0.95
TICKS = np.outer(10.0 ** np.arange(-3, 4), (1, 2, 5)).ravel().tolist()
FINE_TICKS = np.outer(10.0 ** np.arange(-3, 4), (1, 1.5, 2, 3, 5, 7)).ravel().tolist()
"""Ticks of logarithmic axes: `TICKS` of the horizontal axis, `FINE_TICKS` of the vertical axis."""
LINE = 56
"""Largest number of letters in a line of text above the axes."""


@styled
def calibration(ax: Axes, values: Float[np.ndarray, "..."], bins: int = 20) -> Axes:
    """Plot a histogram of PIT values and the 95 % band of uniform values, and return the axes.

    PIT values (probability integral transform) are uniform if predictions are calibrated. The band
    assumes independent values; if bins are correlated, the band is too narrow.

    Args:
        ax: Axes to plot into.
        values: Result of `evkf.analysis.spike_metrics.pit`, of any shape; NaN is left out.
        bins: Number of bars of the histogram.

    Example:
        >>> ax = calibration(new_axes(), np.random.default_rng(0).uniform(size=1000), bins=10)
        >>> len(ax.patches)
        10
    """
    known = np.asarray(values, float).ravel()
    known = known[np.isfinite(known)]
    if not len(known) or known.min() < 0 or known.max() > 1:
        raise InputError("nothing, or values beyond [0, 1]", "values", "pass what pit returns")
    shares, edges = np.histogram(known, bins, (0, 1))
    low, high = np.array(binom.interval(BAND_LEVEL, len(known), 1 / bins)) * bins / len(known)
    ax.bar(edges[:-1], shares * bins / len(known), 1 / bins, align="edge", color=BAND, ec="w", lw=1)
    name = f"uniform, {BAND_LEVEL:.0%}"
    ax.fill_between([0, 1], low, high, color=TRUTH, alpha=0.2, lw=0, zorder=2, label=name)
    ax.axhline(1, color=TRUTH, lw=0.9, zorder=3)
    top = max(shares.max() * bins / len(known), high, 1.2)
    ax.set(xlim=(0, 1), ylim=(0, 1.12 * top), xlabel="predicted probability of fewer spikes (PIT)")
    ax.set(ylabel="density", title="Calibration of predictions")
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2, handlelength=1.2)
    return ax


@styled
def dispersion_check(
    ax: Axes,
    found: Dispersion,
    rates: Float[np.ndarray, " N"],
    likelihood: str = "Poisson",
    units: Sequence | np.ndarray | None = None,
) -> Axes:
    """Plot the dispersion of each unit against the mean rate of the unit, and return the axes.

    Dispersion is the observed variance of counts divided by the variance that the model predicts.
    The sentence of `evkf.analysis.spike_metrics.dispersion_hint` is written above the axes.

    Args:
        ax: Axes to plot into.
        found: Result of `evkf.analysis.spike_metrics.dispersion`.
        rates: Mean rate of each unit in spikes per second, (units,).
        likelihood: Name of the model's distribution of counts: "Poisson" or "negative binomial".
        units: Names of the units; numbered from zero when left out.

    Example:
        >>> found = Dispersion(np.array([1.0, 2.0]), np.array([0.1, 0.1]))
        >>> dispersion_check(new_axes(), found, np.array([5.0, 20.0])).get_ylabel()
        'variance / expected variance'
    """
    x, y = np.asarray(rates, float), found.value
    if x.shape != y.shape:
        raise InputError(f"rates of shape {x.shape}", "rates", f"pass {len(y)} numbers")
    known = np.isfinite(y) & (x > 0) & (y > 0)
    over = over_dispersed(found) & known
    ax.axhline(1, color=TRUTH, lw=0.9, zorder=1)
    kinds = (
        (known & ~over, "o", ESTIMATE, "no more than expected"),
        (over, "^", OVER, "more than expected"),
    )
    for which, marker, colour, name in kinds:
        ax.errorbar(
            x[which],
            y[which],
            found.error[which],
            fmt=marker,
            color=colour,
            label=f"{name}, ± standard error" if which.any() else None,
            ms=4,
            mew=0,
            elinewidth=0.6,
        )
    ax.set(xscale="log", yscale="log", xlabel="mean rate (spikes/s)")
    low, high = (y[known].min(), y[known].max()) if known.any() else (1.0, 1.0)
    ax.set_ylim(min(0.7 * low, 0.55), 1.15 * max(high, 1.4))
    for axis in (ax.xaxis, ax.yaxis):
        ticks = TICKS if axis is ax.xaxis else FINE_TICKS
        axis.set(major_locator=FixedLocator(ticks), minor_locator=NullLocator())
        axis.set_major_formatter("{x:g}")
    ax.set_ylabel("variance / expected variance")
    # above the axes, where no error bars are
    parts = dispersion_hint(found, likelihood, units).replace(": ", ":\n").splitlines()
    hint = [line for part in parts for line in wrap(part, LINE)]
    ax.text(0, 1.02, "\n".join(hint), transform=ax.transAxes, color=TRUTH, va="bottom")
    ax.set_title("Dispersion of units", pad=6 + 11 * len(hint))
    if known.any():
        ax.legend(loc="best", handlelength=1)
    return ax

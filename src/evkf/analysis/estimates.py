"""`Estimates`: the results of filtering or smoothing a sequence of bins, as NumPy arrays.

Files, plots and scores all use this class. `summarise` makes `Estimates` from the output of a
filter, and `to_xarray` returns them as a labelled data set.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from evkf.analysis.forecasting import Forecast
from evkf.errors import InputError
from evkf.expectations.readout import expected_observation, observation_variance
from evkf.filters import Trace
from evkf.model import Model

BATCH = 256
"""Number of bins whose expected observations are computed in parallel (vmap)."""


class Estimates(NamedTuple):
    """Everything inferred from a sequence, as NumPy arrays: one row for each bin.

    Fields that were not computed are None.

    Attributes:
        mean: Mean of the latent state in each bin, (bins, latents).
        cov: Covariance of the latent state in each bin, (bins, latents, latents).
        elbo: Evidence lower bound of each bin, in nats, (bins,); 0 where nothing was observed.
        rates: Expected spikes per second of each unit, given the belief about the latent state,
            (bins, units). For continuous signals, the expected values.
        predicted: One-step predictions, (bins, units): the expected count (or value) of each unit
            in a bin, given only the bins before this bin.
        variance: Variances of the counts (or values) under the one-step predictions,
            (bins, units).
        times: Start of each bin in seconds, (bins,).
        trial: Id of the trial of each bin, (bins,).
        fresh: True for the first bin of each trial, (bins,).
        units: Ids of the units, (units,).
        signals: True for continuous signals, False for counts.
    """

    mean: Float[np.ndarray, "T L"]
    cov: Float[np.ndarray, "T L L"]
    elbo: Float[np.ndarray, " T"]
    rates: Float[np.ndarray, "T N"] | None = None
    predicted: Float[np.ndarray, "T N"] | None = None
    variance: Float[np.ndarray, "T N"] | None = None
    times: Float[np.ndarray, " T"] | None = None
    trial: Int[np.ndarray, " T"] | None = None
    fresh: Bool[np.ndarray, " T"] | None = None
    units: Shaped[np.ndarray, " N"] | None = None
    signals: bool = False

    def rows(self, index: slice | Bool[np.ndarray, " T"] | Int[np.ndarray, " K"]) -> "Estimates":
        """Return estimates of the chosen bins only; `units` and `signals` stay the same.

        Args:
            index: A slice, True for each bin to keep, or the indices of the bins to keep.
        """
        arrays = {name: getattr(self, name) for name in PER_BIN}
        return self._replace(**{k: None if x is None else x[index] for k, x in arrays.items()})


PER_BIN = Estimates._fields[: Estimates._fields.index("units")]
"""Names of the fields that have one row for each bin."""


def summarise(
    model: Model, trace: Trace, rates: bool = True, variance: bool = False, per: float = 1.0
) -> Estimates:
    """Return `Estimates` from a filter's output: means, covariances, bounds, rates, predictions.

    Args:
        model: The model that the filter used.
        trace: Output of `evkf.filters.scan_filter`. Only if the filter was called with
            `predictions=True` do the estimates contain one-step predictions and variances.
        rates: False to leave out rates and one-step predictions.
        variance: True to compute the variances of the one-step predictions as well.
        per: Divisor that converts expected observations to rates: the bin width in seconds for
            counts, 1 for continuous signals.

    Example:
        >>> import jax
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.filters import VariationalKalmanFilter, scan_filter
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0], [0.0, 1.0]], bin_width=0.01))
        >>> counts = np.ones((30, 2), int)
        >>> _, trace = scan_filter(VariationalKalmanFilter(), model, counts, predictions=True)
        >>> estimates = summarise(model, trace, per=0.01)
        >>> estimates.rates.shape, estimates.predicted.shape
        ((30, 2), (30, 2))
    """
    moments = _moments(model, trace, rates, variance) | {"elbo": trace.info.elbo}
    arrays: dict[str, Any] = {name: np.asarray(x) for name, x in jax.device_get(moments).items()}
    if rates:
        arrays["rates"] = arrays["rates"] / per
    return Estimates(**arrays)


@partial(jax.jit, static_argnames=("rates", "variance"))
def _moments(model: Model, trace: Trace, rates: bool, variance: bool) -> dict[str, Array]:
    """Return fields of `Estimates` by name; "rates" are expected observations per bin here."""
    expected = partial(expected_observation, model)
    moments = {
        "mean": jax.vmap(model.family.mean)(trace.belief),
        "cov": jax.vmap(model.family.cov)(trace.belief),
    }
    if rates:
        moments["rates"] = lax.map(expected, trace.belief, batch_size=BATCH)
    if rates and trace.prediction is not None:
        moments["predicted"] = lax.map(expected, trace.prediction, batch_size=BATCH)
    if variance and trace.prediction is not None:
        spread = partial(observation_variance, model)
        moments["variance"] = lax.map(spread, trace.prediction, batch_size=BATCH)
    return moments


def join_estimates(parts: "list[Estimates]") -> Estimates:
    """Return one `Estimates` whose bins are those of consecutive parts, concatenated.

    Units and `signals` are those of the first part. A field that is None in the first part stays
    None.

    Example:
        >>> part = Estimates(np.zeros((2, 1)), np.ones((2, 1, 1)), np.zeros(2))
        >>> join_estimates([part, part]).mean.shape
        (4, 1)
    """
    columns = {name: [getattr(part, name) for part in parts] for name in PER_BIN}
    return parts[0]._replace(
        **{k: None if x[0] is None else np.concatenate(x) for k, x in columns.items()}
    )


AXES = {
    "mean": ("bin", "latent"),
    "cov": ("bin", "latent", "other_latent"),
    "elbo": ("bin",),
    "rates": ("bin", "unit"),
    "rate": ("bin", "unit"),
    "predicted": ("bin", "unit"),
    "variance": ("bin", "unit"),
}
"""Names of the axes of each field of `Estimates` and `Forecast`, for `to_xarray`."""

UNITS_OF_COUNTS = {
    "mean": "a.u.",
    "cov": "a.u.^2",
    "elbo": "nats",
    "rates": "Hz",
    "rate": "spikes per bin",
    "predicted": "spikes per bin",
    "variance": "(spikes per bin)^2",
}
UNITS_OF_SIGNALS = UNITS_OF_COUNTS | {
    "rates": "a.u.",
    "rate": "a.u.",
    "predicted": "a.u.",
    "variance": "a.u.^2",
}


def to_xarray(result: Estimates | Forecast, **attributes: Any) -> Any:
    """Return estimates or a forecast as an `xarray.Dataset`.

    The axes are "bin", "latent" (z0, z1, ...) and "unit". Bins of estimates have the coordinates
    "time" (start of the bin in seconds) and "trial" if times and trials are known. Bins of a
    forecast are numbered from 1. The method `to_pandas` of an array of the data set gives a pandas
    object. Raise InputError if xarray is not installed.

    Args:
        result: Estimates, or a forecast.
        attributes: Attributes to store in the data set, such as `bin_width` and `source`.

    Example:
        >>> zeros = (np.zeros((3, *shape)) for shape in ((1,), (1, 1), (), (2,)))
        >>> bins = {"times": np.arange(3) / 2, "trial": np.array([0, 1, 1])}
        >>> table = to_xarray(Estimates(*zeros, **bins, units=np.array([7, 9])))
        >>> table.time.values, table.trial.values, table.latent.values
        (array([0. , 0.5, 1. ]), array([0, 1, 1]), array(['z0'], dtype='<U2'))
        >>> table.rates.sel(unit=9).where(table.trial == 1, drop=True).to_pandas().tolist()
        [0.0, 0.0]
    """
    try:
        import xarray
    except ImportError:
        remedy = 'pip install "evkf[xarray]"'
        raise InputError("a labelled array needs xarray", "this installation", remedy) from None
    fields = result._asdict()
    latents = np.array([f"z{k}" for k in range(result.mean.shape[1])])
    coordinates: dict[str, Any] = {"latent": latents, "other_latent": latents}
    if isinstance(result, Forecast):
        coordinates["bin"] = np.arange(1, len(result.mean) + 1)
        physical = UNITS_OF_COUNTS
    else:
        physical = UNITS_OF_SIGNALS if result.signals else UNITS_OF_COUNTS
        known = {
            "time": ("bin", result.times, {"units": "s"}),
            "trial": ("bin", result.trial),
            "unit": ("unit", result.units),
        }
        coordinates |= {name: each for name, each in known.items() if each[1] is not None}
    arrays = {
        name: (axes, np.asarray(fields[name]), {"units": physical[name]})
        for name, axes in AXES.items()
        if fields.get(name) is not None
    }
    return xarray.Dataset(arrays, coordinates, attributes)

"""What a model makes of a recording as a labelled data set, for xarray and pandas."""

from typing import Any

import numpy as np

from evkf.data import Recording
from evkf.errors import InputError
from evkf.estimators.trials import AXES, import_xarray
from evkf.recordings.units import Inferred

UNITS = {
    "mean": "a.u.",
    "cov": "a.u.^2",
    "rates": "Hz",
    "predicted": "spikes per bin",
    "elbo": "nats",
}


def to_xarray(recording: Recording, found: Inferred, signals: bool = False) -> Any:
    """Latents, rates and predictions of every bin as an `xarray.Dataset`.

    Bins have coordinates "time" (when they begin, in seconds of the session) and "trial" (its
    number), units their ids, latents the names z0, z1 and so on. A part of it is made a pandas
    object by its own `to_pandas`.

    Args:
        recording: What was filtered.
        found: What `evkf.recordings.units.infer` made of it.
        signals: Whether these are continuous signals, of which rates and predictions are values.

    Example:
        >>> recording = Recording(np.ones((3, 2), int), 0.5, lengths=(1, 2), units={"id": [7, 9]})
        >>> found = Inferred(*(np.zeros((3, *n)) for n in ((1,), (1, 1), (2,), (2,), ())))
        >>> table = to_xarray(recording, found)
        >>> table.time.values, table.trial.values, table.latent.values
        (array([0. , 0.5, 1. ]), array([0, 1, 1]), array(['z0'], dtype='<U2'))
        >>> table.rates.sel(unit=9).where(table.trial == 1, drop=True).to_pandas().tolist()
        [0.0, 0.0]
    """
    if found.rates.shape != recording.counts.shape:
        what = f"rates of shape {found.rates.shape}"
        raise InputError(what, "found", f"pass what was found of {recording.source}")
    axes = {
        "mean": AXES["mean"],
        "cov": AXES["cov"],
        "rates": ("bin", "unit"),
        "predicted": ("bin", "unit"),
        "elbo": ("bin",),
    }
    units = UNITS | ({"rates": "a.u.", "predicted": "a.u."} if signals else {})
    latents = np.array([f"z{k}" for k in range(found.mean.shape[1])])
    return import_xarray().Dataset(
        {name: (axes[name], getattr(found, name), {"units": unit}) for name, unit in units.items()},
        {
            "time": ("bin", recording.times, {"units": "s"}),
            "trial": ("bin", recording.trial_of_bin),
            "unit": recording.units["id"],
            "latent": latents,
            "other_latent": latents,
        },
        {"bin_width": recording.bin_width, "source": recording.source},
    )

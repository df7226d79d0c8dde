"""What a model makes of a recording as a labelled data set, for xarray and pandas."""

from typing import Any

from evkf.analysis.estimates import Estimates
from evkf.analysis.estimates import to_xarray as estimates_to_xarray
from evkf.data import Recording
from evkf.errors import InputError
from evkf.recordings.units import Inferred


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
    estimates = Estimates(
        **found._asdict(),
        times=recording.times,
        trial=recording.trial_of_bin,
        units=recording.units["id"],
        signals=signals,
    )
    about = {"bin_width": recording.bin_width, "source": recording.source}
    return estimates_to_xarray(estimates, **about)

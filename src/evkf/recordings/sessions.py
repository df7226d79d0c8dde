"""Sessions longer than memory, in chunks with the state carried over; and many sessions at once."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np

from evkf.analysis.forecasting import expected_counts
from evkf.data import Recording
from evkf.data.estimates import growing_hdf5
from evkf.data.files import Arrays
from evkf.errors import InputError
from evkf.estimators.trials import Trials, join, read_trials
from evkf.filters import scan_filter
from evkf.recordings.units import Inferred, UnitModel, check_units, infer_trials

CHUNK = 10_000
"""Bins filtered at a time."""


def filter_chunks(
    model: UnitModel, chunks: Iterable[Recording], variance: bool = False
) -> Iterator[tuple[Recording, np.ndarray, Inferred]]:
    """Filter what `stream_recording` yields, as `infer` would the whole.

    Args:
        model: The model.
        chunks: As `stream_recording` yields them.
        variance: Whether to tell the variances of predicted counts too.

    Yields:
        Every chunk, True where a trial begins in it, and what was inferred.
    """
    state, last, label, first = None, None, None, 0
    key = jax.random.key(0)
    for chunk in chunks:
        check_units(model, chunk)
        fresh, labels = chunk.fresh, chunk.trials["trial"]
        fresh[0] = label is None or labels[0] != label
        label = labels[-1]
        state, trace = scan_filter(
            model.filter,
            model.model,
            chunk.counts,
            chunk.masks,
            state=state,
            key=key,
            first=first,
            fresh=fresh,
        )
        before = jax.tree.map(lambda x: x[:1], trace.belief) if last is None else last
        last = jax.tree.map(lambda x: x[-1:], trace.belief)
        beliefs = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), before, trace.belief)
        marks = jnp.asarray(np.concatenate([[True], fresh]))
        now, ahead, spread = expected_counts(model.filter, model.model, beliefs, marks, variance)
        family = model.model.family
        found = (
            jax.vmap(family.mean)(trace.belief),
            jax.vmap(family.cov)(trace.belief),
            now[1:] / model.per_rate,
            ahead[1:],
            trace.info.elbo,
            *(() if spread is None else (spread[1:],)),
        )
        first += chunk.num_bins
        yield chunk, fresh, Inferred(*map(np.asarray, found))


def infer_in_chunks(
    model: UnitModel,
    recording: Recording,
    progress: Callable[[int, int], None] | None = None,
    variance: bool = False,
) -> Inferred:
    """What `infer` gives, told of as it comes.

    Args:
        model: The model.
        recording: The recording.
        progress: Told after every chunk how many of how many bins are done.
        variance: Whether to tell the variances of predicted counts too.
    """
    num, parts = recording.num_bins, []
    chunks = (recording.cut(slice(k, min(k + CHUNK, num))) for k in range(0, num, CHUNK))
    for chunk, _, found in filter_chunks(model, chunks, variance):
        parts.append([array for array in found if array is not None])
        if progress is not None:
            progress(chunk.num_bins + CHUNK * (len(parts) - 1), num)
    return Inferred(*map(np.concatenate, zip(*parts, strict=True)))


def infer_many(model: UnitModel, recordings: Sequence[Recording]) -> list[Inferred]:
    """What `infer` gives of every recording, filtered all at once.

    Args:
        model: The model.
        recordings: Of its units and bins, of any lengths; all of them fit into memory.

    Example:
        >>> from evkf.recordings.units import fit_recording
        >>> counts = np.random.default_rng(0).poisson(1.0, (200, 5))
        >>> model = fit_recording(Recording(counts, bin_width=0.02), latents=1, passes=2)
        >>> days = [Recording(counts[:80], 0.02), Recording(counts, 0.02)]
        >>> [found.mean.shape for found in infer_many(model, days)]
        [(80, 1), (200, 1)]
    """
    if not recordings:
        raise InputError("no recordings", "recordings", "pass one or more")
    found = infer_trials(model, join([_read(model, recording) for recording in recordings]))
    ends = np.cumsum([recording.num_bins for recording in recordings])[:-1]
    arrays = [np.split(array, ends) for array in found if array is not None]
    return [Inferred(*parts) for parts in zip(*arrays, strict=True)]


def _read(model: UnitModel, recording: Recording) -> Trials:
    check_units(model, recording)
    try:
        counts, masks = recording.split(recording.counts), recording.split(recording.masks)
        return read_trials(model.model, counts, masks)
    except InputError as error:
        where = f"{recording.source}: {error.where}"
        raise InputError(error.what, where, error.remedy) from None


def to_estimates(
    recording: Recording, fresh: np.ndarray, found: Inferred, numbers: np.ndarray | None = None
) -> Arrays:
    """What is written of every bin, by name.

    Bins have the id of their trial, or its number where trials have none; nothing of the kind where
    an NWB session was read as a single trial.

    Args:
        recording: What was filtered, or a chunk of it.
        fresh: True where a trial begins.
        found: What was inferred.
        numbers: Of the trials that are in a chunk; from zero when left out.

    Example:
        >>> recording = Recording(np.ones((1, 1), int), 0.02)
        >>> found = Inferred(*(np.zeros((1,) * n) for n in (2, 3, 2, 2, 1)))
        >>> list(to_estimates(recording, recording.fresh, found))
        ['latent_mean', 'latent_cov', 'rates', 'predicted', 'elbo', 'times', 'fresh', 'trial']
    """
    ids = recording.trials.get("id", np.zeros(0, str))
    if ids.dtype.kind not in "iu":
        ids = np.arange(recording.num_trials) if numbers is None else numbers
        ids = None if recording.source.endswith(".nwb") else ids
    trial = {} if ids is None else {"trial": ids[recording.trial_of_bin]}
    return {
        "latent_mean": found.mean,
        "latent_cov": found.cov,
        "rates": found.rates,
        "predicted": found.predicted,
        "elbo": found.elbo,
        "times": recording.times,
        "fresh": fresh,
        **trial,
    }


def filter_to_hdf5(
    path: str | os.PathLike,
    model: UnitModel,
    chunks: Iterable[Recording],
    overwrite: bool = False,
    progress: Callable[[Recording], None] | None = None,
) -> tuple[int, float]:
    """Filter chunks into an HDF5 file that grows; one chunk is in memory at a time.

    Args:
        path: Ends in .h5 or .hdf5; it is complete or not there.
        model: The model.
        chunks: As `stream_recording` yields them.
        overwrite: Whether to write in place of a file that is there.
        progress: Told of every chunk that is written.

    Returns:
        Bins, and the sum of their bounds.
    """
    parts = iter(chunks)
    begin = next(parts, None)
    if begin is None:
        raise InputError("no chunks", "chunks", "pass one or more")
    check_units(model, begin)
    bins, total = 0, 0.0
    with growing_hdf5(path, begin, overwrite) as file:
        for chunk, fresh, found in filter_chunks(model, chain([begin], parts)):
            file.add(to_estimates(chunk, fresh, found, chunk.trials["trial"]))
            bins, total = bins + chunk.num_bins, total + float(found.elbo.sum())
            if progress is not None:
                progress(chunk)
    return bins, total

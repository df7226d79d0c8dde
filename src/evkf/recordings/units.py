"""Fit a model to the units of a recording, and filter recordings of the same units.

A `UnitModel` is a model that knows the ids of the units: row n of the readout (the weights that
relate latent states to counts) belongs to unit n. Functions raise InputError for a recording of
other units; `evkf.recordings.mapping` adapts a model to other units. Recordings that do not fit
into memory are filtered in chunks, and many recordings are filtered in parallel (vmap) if this is
faster. `evkf filter` uses these functions.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from evkf.analysis.estimates import Estimates, join_estimates, summarise
from evkf.data.estimates import growing_hdf5
from evkf.data.recording import Recording
from evkf.data.storage import load_tree, read_meta
from evkf.dynamics import Dynamics, ResidualMLP
from evkf.errors import InputError
from evkf.estimators.trials import join, read_trials, scan_trials
from evkf.filters import State, Trace, VariationalKalmanFilter, scan_filter
from evkf.filters.batched import SHORTEST, filled, side_by_side_pays
from evkf.learning import LearnerState
from evkf.learning.warm_up import KINDS
from evkf.likelihoods import Gaussian, Likelihood, StudentT
from evkf.model import Model
from evkf.parameters import PARTS, free

BINS_OF_TRAINING, MOST_PASSES, LEAST_PASSES = 200_000, 60, 3
"""A fit makes as many passes over a recording as give about `BINS_OF_TRAINING` bins in all, but at
most `MOST_PASSES` and at least `LEAST_PASSES`."""
CHUNK = 10_000
"""Number of bins in a chunk, which are filtered at a time."""
MANY_TRIALS, MANY_BINS = 8, 1 << 15
"""On a CPU, filtering trials in parallel (vmap) is faster from this number of trials, if all trials
together have this number of bins."""


class UnitModel(NamedTuple):
    """A model, the filter to use, and the units and bin width of the recordings to filter.

    Attributes:
        model: The model; row n of the readout belongs to unit n of `units`.
        filter: The filter that infers latent states.
        units: Ids of the units as text, in the order of the channels of the model.
        bin_width: Bin width in seconds.
        estimator: The fitted `EVKF`; None if the model was mapped to other units, or was loaded
            with `learner=False`.
        fitted: File name and trial times of the recording that the model was fitted to, from
            `fitted_to`. `evkf fit` adds how the recording was cut into trials.
    """

    model: Model
    filter: VariationalKalmanFilter
    units: tuple[str, ...]
    bin_width: float
    estimator: Any = None
    fitted: Mapping[str, Any] | None = None

    @property
    def signals(self) -> bool:
        """True for a model of continuous signals, not of spikes."""
        return isinstance(self.model.likelihood, Gaussian | StudentT)

    @property
    def per_rate(self) -> float:
        """Divisor that converts expected observations to rates.

        This is the bin width in seconds for spikes, and 1 for continuous signals.
        """
        return 1.0 if self.signals else self.bin_width

    def save(self, path: str | os.PathLike) -> None:
        """Write the estimator, the ids of the units and the bin width to a .safetensors file.

        Raise InputError if there is no estimator, as for a model mapped to other units.

        Args:
            path: The file to write.
        """
        if self.estimator is None:
            remedy = "save the model it was mapped from"
            raise InputError("a model mapped to other units", str(path), remedy)
        note = {"units": list(self.units), "bin_width": self.bin_width}
        note |= {} if self.fitted is None else {"fitted": dict(self.fitted)}
        self.estimator.save(path, note)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        likelihood: Likelihood | None = None,
        dynamics: Dynamics | None = None,
        *,
        learner: bool = True,
    ) -> Self:
        """Return the model in a file that `save` wrote.

        Args:
            path: The file to read.
            likelihood: Needed only if `fit_recording` was given a likelihood object, not a name:
                any likelihood of the same class and size. All numbers are read from the file.
            dynamics: Needed only if `fit_recording` was given a dynamics object, not a name: any
                dynamics of the same class and size. All numbers are read from the file.
            learner: False to read the model without the estimator where possible, which is faster.
        """
        meta = read_meta(path)
        note = meta.get("note", {})
        if "units" not in note:
            raise InputError("a model without units", str(path), "load a file of `evkf fit`")
        known = tuple(note["units"]), note["bin_width"]
        fitted = note.get("fitted")
        if not learner and likelihood is None and dynamics is None:
            # the model alone is read if likelihood and dynamics were given by name
            params = meta["params"]
            named = params.get("dynamics") == "mlp" and params.get("likelihood") in KINDS
            if named and not (meta["given"] or meta["kept"] or _learning(meta)["watch"]):
                return cls(*_read_model(path, meta), *known, None, fitted)
        from evkf.estimators.evkf import EVKF  # not needed to filter

        estimator = EVKF.load(path, likelihood, dynamics)
        return cls(estimator.model_, estimator.learner_.filter, *known, estimator, fitted)


def _learning(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of learning; files of version 1 store them among other parameters."""
    params = meta["params"]
    return params.get("learning") or params | {"parts": params["learn"]}


def _read_model(
    path: str | os.PathLike, meta: dict[str, Any]
) -> tuple[Model, VariationalKalmanFilter]:
    """Return the model and the filter in a file; other parts of the learner are not read."""
    params, neurons, learning = meta["params"], meta["neurons"], _learning(meta)
    latents, hidden, parts = params["latents"], learning["hidden"], learning["parts"]
    hidden = tuple(hidden) if isinstance(hidden, list) else hidden
    inputs = meta["inputs"] if "inputs" in meta else params["num_inputs"]
    # zeros of the right shapes: drawing random numbers would compile many programs
    shapes = eqx.filter_eval_shape(
        lambda: ResidualMLP(latents, 1.0, jax.random.key(0), hidden, inputs)
    )
    dynamics = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    readout = np.zeros((neurons, latents))
    start = Model(dynamics, KINDS[params["likelihood"]](readout, bin_width=params["bin_width"]))
    parts = PARTS if parts is None else tuple(parts)
    blank = LearnerState(**dict.fromkeys(LearnerState._fields))  # pyright: ignore[reportArgumentType]
    shapes = eqx.filter_eval_shape(free, start, parts)
    tree = {"state": blank._replace(free=shapes, doubt=jnp.zeros(()))}
    state = load_tree(path, tree, partial=True)[0]["state"]
    return state.model, VariationalKalmanFilter(rule="moment_matching")


def names(recording: Recording) -> tuple[str, ...]:
    """Return the ids of the units of a recording as text."""
    return tuple(str(unit) for unit in recording.units["id"])


def fitted_to(recording: Recording) -> dict[str, Any]:
    """Return the file name of a recording and the start and end of each trial in seconds.

    A `UnitModel` keeps this dictionary, so that `trials_seen` can recognise the trials later.

    Example:
        >>> fitted_to(Recording(np.ones((3, 1), int), 0.5, (1, 2), source="data/day1.nwb"))
        {'source': 'day1.nwb', 'starts': [0.0, 0.5], 'stops': [0.5, 1.5]}
    """
    stops = recording.start_times + recording.bin_width * np.asarray(recording.lengths)
    name = os.path.basename(recording.source)
    return {"source": name, "starts": recording.start_times.tolist(), "stops": stops.tolist()}


def trials_seen(model: UnitModel, recording: Recording) -> Bool[np.ndarray, " K"]:
    """Return True for each trial of which the model has seen at least half in the fit, (trials,).

    Recordings count as the same if their file names are equal.

    Args:
        model: The fitted model.
        recording: The recording whose trials are checked.
    """
    known, here = model.fitted, fitted_to(recording)
    starts, stops = np.array(here["starts"]), np.array(here["stops"])
    seen = np.zeros(len(starts))
    if known is not None and known["source"] == here["source"]:
        for start, stop in zip(known["starts"], known["stops"], strict=True):
            seen += np.maximum(np.minimum(stop, stops) - np.maximum(start, starts), 0)
    return seen >= (stops - starts) / 2


def passes_for(recording: Recording) -> int:
    """Return the default number of passes over a recording in a fit.

    This is 200,000 divided by the number of bins, but between 3 and 60.
    """
    return int(np.clip(BINS_OF_TRAINING // recording.num_bins, LEAST_PASSES, MOST_PASSES))


def fit_recording(
    recording: Recording,
    latents: int,
    likelihood: str | Likelihood = "poisson",
    dynamics: str | Dynamics = "mlp",
    *,
    passes: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> UnitModel:
    """Learn readout, dynamics, noise and initial belief from a recording, and return the model.

    Args:
        recording: The recording to fit; each trial begins at the learned initial belief.
        latents: Number of latent dimensions.
        likelihood: "poisson", "negative_binomial", "bernoulli" or "gaussian"; or a likelihood
            object, from `evkf.likelihoods` or your own, from which learning begins.
        dynamics: "mlp" for a neural network, or a dynamics object from `evkf.dynamics`, from which
            learning begins.
        passes: Number of passes over the recording; when left out, that of `passes_for`: 60 for
            short recordings, fewer for long recordings.
        seed: Seed of all random numbers.
        progress: Function called after each pass, with the number of passes so far and of all
            passes.
        settings: Other fields of `evkf.estimators.settings.Learning`, such as `hidden`, the number
            of hidden units of the network (64 when left out), and `parts`, the parts of the model
            that are learned.

    Example:
        >>> counts = np.random.default_rng(0).poisson(1.0, (200, 5))
        >>> model = fit_recording(Recording(counts, bin_width=0.02), latents=1, passes=2)
        >>> infer(model, Recording(counts, bin_width=0.02)).rates.shape
        (200, 5)
    """
    from evkf.estimators.evkf import EVKF  # not needed to filter
    from evkf.estimators.settings import Learning

    passes = passes_for(recording) if passes is None else passes
    warm_up = max(recording.num_bins, latents + 1)
    learning = Learning(**{"hidden": 64, "warm_up": warm_up, "passes": passes, **settings})
    width = recording.bin_width
    estimator = EVKF(latents, likelihood, dynamics, width, learning=learning, seed=seed)
    report = None if progress is None else lambda done: progress(done, passes)
    trials, masks = recording.split(recording.counts), recording.split(recording.masks)
    estimator.fit(trials, masks=masks, progress=report)
    return UnitModel(
        estimator.model_,
        estimator.learner_.filter,
        names(recording),
        recording.bin_width,
        estimator,
        fitted_to(recording),
    )


def infer(
    model: UnitModel,
    recording: Recording,
    hide: Bool[np.ndarray, " N"] | None = None,
    *,
    variance: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Estimates:
    """Filter a recording and return the estimates; nothing is learned.

    Args:
        model: The fitted model.
        recording: A recording of the model's units, in the same order and of the same bin width.
        hide: True for each unit whose counts are hidden from the filter, (units,). Rates and
            predictions of hidden units are computed as well. When left out, no unit is hidden.
        variance: True to compute the variances of predicted counts as well.
        progress: Function called from time to time, with the number of bins filtered so far and of
            all bins.
    """
    return infer_many(model, [recording], hide, variance=variance, progress=progress)[0]


def infer_many(
    model: UnitModel,
    recordings: Sequence[Recording],
    hide: Bool[np.ndarray, " N"] | None = None,
    *,
    variance: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Estimates]:
    """Filter recordings and return the estimates of each recording; nothing is learned.

    Trials are filtered in parallel (vmap) if this is faster, otherwise one after another.

    Args:
        model: The fitted model.
        recordings: Recordings of the model's units and bin width, of any number of bins. All must
            fit into memory together.
        hide: True for each unit whose counts are hidden from the filter, as for `infer`.
        variance: True to compute the variances of predicted counts as well.
        progress: Function called from time to time, with the number of bins filtered so far and of
            all bins.

    Example:
        >>> counts = np.random.default_rng(0).poisson(1.0, (200, 5))
        >>> model = fit_recording(Recording(counts, bin_width=0.02), latents=1, passes=2)
        >>> days = [Recording(counts[:80], 0.02), Recording(counts, 0.02)]
        >>> [found.mean.shape for found in infer_many(model, days)]
        [(80, 1), (200, 1)]
    """
    if not recordings:
        raise InputError("no recordings", "recordings", "pass one or more")
    for recording in recordings:
        check_units(model, recording)
    report = progress or (lambda _done, _total: None)
    lengths = [recording.num_bins for recording in recordings]
    total, num_trials = sum(lengths), sum(recording.num_trials for recording in recordings)
    on_cpu = jax.default_backend() == "cpu"
    many, long = (MANY_TRIALS, MANY_BINS) if on_cpu else (2, 0)
    if side_by_side_pays(model.model) and num_trials >= many and total >= long:
        trials = []
        for recording in recordings:
            masks = recording.masks if hide is None else recording.masks & ~np.asarray(hide)
            split = recording.split(recording.counts), recording.split(masks)
            with _naming(recording.source):
                trials.append(read_trials(model.model, *split))
        key = jax.random.key(0)
        options = {"predictions": True, "side_by_side": True}
        trace = scan_trials(model.filter, model.model, join(trials), key, **options)
        whole = _summarise(model, trace, variance, total)
        report(total, total)
        ends = np.cumsum(lengths)
        return [
            whole.rows(slice(end - num, end))._replace(**recording.bin_labels())
            for recording, num, end in zip(recordings, lengths, ends, strict=True)
        ]
    size, done, results = min(filled(max([SHORTEST, *lengths])), CHUNK), 0, []
    for recording in recordings:
        begins = range(0, recording.num_bins, CHUNK)
        cuts = (recording.cut(slice(k, min(k + CHUNK, recording.num_bins))) for k in begins)
        parts = []
        for chunk, estimates in filter_chunks(model, cuts, hide, variance=variance, size=size):
            parts.append(estimates)
            done += chunk.num_bins
            report(done, total)
        results.append(join_estimates(parts)._replace(**recording.bin_labels()))
    return results


def filter_chunks(
    model: UnitModel,
    chunks: Iterable[Recording],
    hide: Bool[np.ndarray, " N"] | None = None,
    *,
    variance: bool = False,
    size: int = SHORTEST,
) -> Iterator[tuple[Recording, Estimates]]:
    """Filter the consecutive chunks of one recording, and yield the estimates of each chunk.

    The filter state at the end of a chunk is kept for the next chunk, so that estimates are the
    same as if the whole recording were filtered by `infer`.

    Args:
        model: The fitted model.
        chunks: Chunks of the recording in order, from `stream_recording` or `Recording.cut`.
        hide: True for each unit whose counts are hidden from the filter, as for `infer`.
        variance: True to compute the variances of predicted counts as well.
        size: Smallest number of bins to filter at a time. Shorter chunks are padded by unobserved
            bins, so that one compiled program filters all chunks.

    Yields:
        A chunk, and the estimates of the chunk.
    """
    state, label, first = None, None, 0
    key = jax.random.key(0)
    for chunk in chunks:
        check_units(model, chunk)
        fresh, numbers, num = chunk.fresh, chunk.trials["trial"], chunk.num_bins
        fresh[0] = label is None or numbers[0] != label
        label = numbers[-1]
        masks = chunk.masks if hide is None else chunk.masks & ~np.asarray(hide)
        size = max(size, num if num >= CHUNK else filled(max(num, SHORTEST)))
        # pad by bins that are not observed
        rows = (chunk.counts, masks, fresh)
        ys, seen, begins = (
            np.concatenate([x, np.zeros((size - num, *x.shape[1:]), x.dtype)]) for x in rows
        )
        with _naming(chunk.source):
            last, trace = scan_filter(
                model.filter,
                model.model,
                ys,
                seen,
                state=state,
                key=key,
                first=first,
                fresh=begins,
                predictions=True,
            )
        state = last
        if num < size:
            end = num - 1
            state = State(jax.tree.map(lambda x, end=end: np.asarray(x)[end], trace.belief))
        first += num
        estimates = _summarise(model, trace, variance, num)
        yield chunk, estimates._replace(**chunk.bin_labels(fresh, numbers))


def filter_to_hdf5(
    path: str | os.PathLike,
    model: UnitModel,
    chunks: Iterable[Recording],
    overwrite: bool = False,
    progress: Callable[[Recording], None] | None = None,
) -> tuple[int, float]:
    """Filter chunks, write the estimates to an HDF5 file, and return number of bins and bound.

    Only one chunk is in memory at a time. Raise InputError if there are no chunks.

    Args:
        path: File to write, whose name ends in .h5 or .hdf5. If filtering fails, no incomplete file
            is left under this name.
        model: The fitted model.
        chunks: Chunks of the recording in order, from `stream_recording`.
        overwrite: True to replace an existing file.
        progress: Function called after each chunk is written, with this chunk.

    Returns:
        The number of bins, and the sum of the evidence lower bounds of these bins in nats.
    """
    parts = iter(chunks)
    begin = next(parts, None)
    if begin is None:
        raise InputError("no chunks", "chunks", "pass one or more")
    check_units(model, begin)
    bins, total = 0, 0.0
    with growing_hdf5(path, begin, overwrite) as append:
        for chunk, estimates in filter_chunks(model, chain([begin], parts)):
            append(estimates)
            bins, total = bins + chunk.num_bins, total + float(estimates.elbo.sum())
            if progress is not None:
                progress(chunk)
    return bins, total


def _summarise(model: UnitModel, trace: Trace, variance: bool, num: int) -> Estimates:
    """Return the estimates of the first `num` bins of a filter's output."""
    estimates = summarise(model.model, trace, variance=variance, per=model.per_rate)
    return estimates.rows(slice(num))._replace(signals=model.signals)


@contextmanager
def _naming(source: str) -> Iterator[None]:
    """Raise InputErrors about observations again, with the name of the recording's file added."""
    try:
        yield
    except InputError as error:
        name, bracket, place = error.where.partition("[")
        if name not in ("ys", "X"):
            raise
        where = f"{source}: counts{bracket}{place}"
        raise InputError(error.what, where, error.remedy) from None


def check_units(model: UnitModel, recording: Recording) -> None:
    """Raise InputError if a recording has other units than the model, or another bin width."""
    check_width(model, recording)
    have = names(recording)
    if have == model.units:
        return
    strange = [unit for unit in have if unit not in model.units]
    absent = [unit for unit in model.units if unit not in have]
    what = "the model's units in another order"
    if strange or absent:
        parts = [f"{len(strange)} units that the model does not have"] * bool(strange)
        parts += [f"{len(absent)} units of the model are missing from the file"] * bool(absent)
        example = (strange or absent)[0]
        what = f"{' and '.join(parts)} (such as {example!r})"
    remedy = (
        "if the model was fitted with --units or --min-rate, pass the same; else fit a model of "
        "its own, or name the units that are the same with a unit map"
    )
    raise InputError(what, f"{recording.source}: units", remedy)


def check_width(model: UnitModel, recording: Recording) -> None:
    """Raise InputError if a recording has another bin width than the model."""
    own, width = model.bin_width, recording.bin_width
    if abs(width - own) > 1e-6 * own:
        what = f"bins of {width:g} s for a model of bins of {own:g} s"
        remedy = f"read it with --bin-width {own:g}, or fit a model of its own"
        raise InputError(what, f"{recording.source}: bin_width", remedy)

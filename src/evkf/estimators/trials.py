"""Read recordings that are an array, or a list of trials of different lengths, and filter them.

Trials are concatenated, with a mark where each trial begins, and filtered one after another.
Unobserved bins are added at the end until the number of bins is a power of two, so that a new
length seldom needs another compilation. Many trials can instead be filtered in parallel (vmap).
Results have only the bins that were given.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from evkf.analysis.estimates import Estimates, summarise
from evkf.analysis.smoothing import smooth
from evkf.errors import InputError
from evkf.filters import Filter, Trace, VariationalKalmanFilter, scan_filter
from evkf.filters.batched import SHORTEST, Session, scan_checked, side_by_side_pays
from evkf.model import Model
from evkf.types import Key

MANY, LONG = 8, 1 << 15
"""Smallest number of trials, and of bins in all trials together, for which a CPU is faster when it
filters trials in parallel (vmap)."""


class Trials(NamedTuple):
    """Concatenated trials: T bins of N neurons, with U inputs.

    Attributes:
        ys: Observations, (T, N); zero where masked.
        masks: True where observed, (T, N).
        us: Inputs, (T, U).
        fresh: True where a trial begins, (T,).
        lengths: Number of bins of every trial.
        many: True if the recording was given as a list of trials, False if as one array.
    """

    ys: Float[np.ndarray, "T N"]
    masks: Bool[np.ndarray, "T N"]
    us: Float[np.ndarray, "T U"]
    fresh: Bool[np.ndarray, " T"]
    lengths: tuple[int, ...]
    many: bool

    def split(self, estimates: Estimates) -> Estimates | list[Estimates]:
        """Return estimates as a list with one entry per trial, if the trials were given as a list.

        If the recording was given as one array, return the estimates unchanged.

        Args:
            estimates: Estimates of all bins, (T, ...).
        """
        if not self.many:
            return estimates
        ends = zip(self.lengths, np.cumsum(self.lengths), strict=True)
        return [estimates.rows(slice(end - length, end)) for length, end in ends]


def count_columns(X: Any, name: str = "X", columns: str = "neurons") -> int:
    """Return the number of columns of an array (bins, columns), or of the first array of a list.

    Raise `InputError` if the array is sparse or does not have two axes.

    Args:
        X: The array, or a list of arrays.
        name: Name of the argument, for messages.
        columns: Name of the columns, for messages.

    Example:
        >>> count_columns([np.zeros((3, 2)), np.zeros((4, 2))])
        2
    """
    if hasattr(X, "toarray"):
        raise InputError(f"a sparse {name}", name, f"pass {name}.toarray()")
    shape = np.asarray(X[0] if _is_list(X) else X).shape
    if len(shape) != 2:
        remedy = f"pass (bins, {columns}), or a list of such trials"
        raise InputError(f"{name} with {len(shape)} axes", name, remedy)
    return shape[1]


def _is_list(X: Any) -> bool:
    return isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) > 1


def read_trials(
    model: Model, X: Any, masks: Any = None, inputs: Any = None, follows: bool = False
) -> Trials:
    """Check a recording against a model, and return the recording as `Trials`.

    Raise `InputError` if shapes do not match the model, if a value is impossible under the
    likelihood, or if NaN is not masked. Wrong shapes are never corrected.

    Args:
        model: The model, which gives the numbers of neurons and inputs, and possible values.
        X: Observations, (bins, neurons), or a list of such trials.
        masks: True where observed, of the shape of X, or (bins,) for whole bins; all observed when
            left out. If X is a list, a list with one array for each trial.
        inputs: Inputs, (bins, inputs); left out if the dynamics take no inputs. If X is a list, a
            list with one array for each trial.
        follows: True if X is one array whose first bin follows the last bin of an earlier array, so
            that no trial begins. Not used if X is a list.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0]]))
        >>> read_trials(model, [np.zeros((2, 1)), np.ones((3, 1))]).fresh
        array([ True, False,  True, False, False])
    """
    if not _is_list(X):
        bins = _read_bins(model, X, masks, inputs, ("X", "masks", "inputs"))
        num = len(bins[0])
        fresh = np.zeros(num, bool)
        fresh[:1] = not follows
        trials = Trials(*bins, fresh, (num,), False)
    else:
        for name, value in (("masks", masks), ("inputs", inputs)):
            if value is not None and len(value) != len(X):
                what = f"{len(value)} {name} for {len(X)} trials"
                raise InputError(what, name, "pass one for every trial")
        parts = []
        for i, x in enumerate(X):
            names = (f"X[{i}]", f"masks[{i}]", f"inputs[{i}]")
            mask = None if masks is None else masks[i]
            bins = _read_bins(model, x, mask, None if inputs is None else inputs[i], names)
            fresh = np.zeros(len(x), bool)
            fresh[:1] = True
            parts.append(Trials(*bins, fresh, (len(x),), True))
        trials = join(parts)
    if not len(trials.fresh):
        raise InputError("no bins", "X", "pass one or more")
    return trials


def read_bin(
    model: Model, x: ArrayLike, mask: ArrayLike | None, inputs: ArrayLike | None, fresh: bool
) -> Trials:
    """Check one bin against a model, and return the bin as `Trials` that have a single bin.

    Errors are raised as by `read_trials`.

    Args:
        model: The model, which gives the numbers of neurons and inputs, and possible values.
        x: Observations, (neurons,).
        mask: True where observed, (neurons,); all observed when None.
        inputs: Input of the bin, (inputs,); None if the dynamics take no inputs.
        fresh: True if the bin is the first of a trial.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0]]))
        >>> read_bin(model, [-1.0], None, None, fresh=True)
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: negative count -1.0 (in x[0]): pass spike counts, or mask the entry
    """
    channels, num_inputs = model.likelihood.num_channels, model.dynamics.num_inputs
    sizes = (("x", x, channels), ("mask", mask, channels), ("inputs", inputs, num_inputs))
    for name, value, size in sizes:
        if value is not None and np.shape(value) != (size,):
            raise InputError(f"{name} of shape {np.shape(value)}", name, f"pass shape ({size},)")
    Y, masks, us = (None if value is None else np.asarray(value)[None] for _, value, _ in sizes)
    try:
        bins = _read_bins(model, Y, masks, us, ("x", "mask", "inputs"))
    except InputError as error:
        where, remedy = error.where.replace("[0, ", "["), error.remedy.replace("(1, ", "(")
        raise InputError(error.what, where, remedy) from None
    return Trials(*bins, np.array([bool(fresh)]), (1,), False)


def _read_bins(
    model: Model, X: Any, masks: Any, inputs: Any, names: tuple[str, str, str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Check consecutive bins, and return observations (zero where masked), masks and inputs.

    Messages call the three arguments by the given names.
    """
    channels, num_inputs = model.likelihood.num_channels, model.dynamics.num_inputs
    where, mask_name, input_name = names
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise InputError("bins of unequal lengths", where, f"pass (bins, {channels})") from error
    if array.dtype.kind not in "buif":
        raise InputError(f"{where} of type {array.dtype}", where, "pass real numbers")
    if array.ndim != 2 or array.shape[1] != channels:
        what = f"observations of shape {array.shape} for {channels} channels"
        remedy = f"pass (bins, {channels}); transpose or select channels first"
        raise InputError(what, where, remedy)
    num = len(array)

    mask = np.ones(array.shape, bool) if masks is None else np.asarray(masks)
    if mask.dtype != bool:
        raise InputError(f"mask of type {mask.dtype}", mask_name, "pass booleans, True = observed")
    if mask.shape == (num,):
        mask = np.repeat(mask[:, None], channels, axis=1)
    if mask.shape != array.shape:
        what = f"mask of shape {mask.shape} for observations of shape {array.shape}"
        remedy = f"pass shape {array.shape}, or ({num},) for whole bins"
        raise InputError(what, mask_name, remedy)
    bad = mask & ~np.isfinite(array)
    if bad.any():
        t, n = (int(i) for i in np.argwhere(bad)[0])
        what = f"observation {array[t, n]} that is not masked"
        remedy = f"mark missing entries with False in {mask_name}"
        raise InputError(what, f"{where}[{t}, {n}]", remedy)
    model.likelihood.check(array, mask, where)

    us = np.zeros((num, 0)) if inputs is None else np.asarray(inputs)
    if us.dtype.kind not in "buif" or us.shape != (num, num_inputs):
        what = "no inputs" if inputs is None else f"inputs of type {us.dtype} and shape {us.shape}"
        remedy = f"pass shape ({num}, {num_inputs}): the dynamics take {num_inputs} inputs"
        raise InputError(what, input_name, remedy)
    if not np.isfinite(us).all():
        raise InputError("inputs that are not finite", input_name, "pass finite numbers")
    dtype = jnp.result_type(float)
    return np.where(mask, array, 0).astype(dtype), mask, us.astype(dtype)


def join(parts: Sequence[Trials]) -> Trials:
    """Return several recordings concatenated in time, as one.

    Args:
        parts: One recording or more; `many` of the result is that of the first.

    Example:
        >>> bins = np.zeros((2, 1)), np.ones((2, 1), bool), np.zeros((2, 0)), np.zeros(2, bool)
        >>> join([Trials(*bins, (2,), False)] * 3).lengths
        (2, 2, 2)
    """
    ys, masks, us, fresh = (
        np.concatenate(arrays) for arrays in zip(*(p[:4] for p in parts), strict=True)
    )
    return Trials(ys, masks, us, fresh, sum((part.lengths for part in parts), ()), parts[0].many)


def fill_up(trials: Trials) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return observations, masks, inputs and trial starts, padded to 2^k bins.

    Each added bin is unobserved, and begins a trial. The smallest number of bins is `SHORTEST`.

    Args:
        trials: The recording.

    Example:
        >>> bins = np.ones((70, 1)), np.ones((70, 1), bool), np.zeros((70, 0)), np.zeros(70, bool)
        >>> [array.shape for array in fill_up(Trials(*bins, (70,), False))]
        [(128, 1), (128, 1), (128, 0), (128,)]
    """
    num = len(trials.fresh)
    added = max(SHORTEST, 1 << (num - 1).bit_length()) - num
    ys, masks, us, fresh = (
        np.concatenate([array, np.zeros((added, *array.shape[1:]), array.dtype)])
        for array in trials[:4]
    )
    fresh[num:] = True
    return ys, masks, us, fresh


def scan_trials(
    filter: Filter,
    model: Model,
    trials: Trials,
    key: Key,
    predictions: bool = False,
    side_by_side: bool | None = None,
) -> Trace:
    """Filter trials, each from the initial belief; return beliefs and diagnostics of all bins.

    Trials are concatenated in the result. After the last bin, rows without meaning are added up to
    the number of bins of `fill_up`.

    Args:
        filter: The filter.
        model: The model.
        trials: The recording.
        key: JAX random key, for filters and likelihoods that sample.
        predictions: True to return one-step predictions too.
        side_by_side: True to filter all trials in parallel (vmap), False to filter trials one after
            another. Parallel filtering needs a filter that keeps nothing from one trial to the
            next. It takes only as many steps in sequence as the longest trial has bins, which makes
            a GPU much faster. A CPU gains less, because it also computes the padding of short
            trials, and each step takes as long as the slowest trial. None to choose what is faster
            on this machine.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.filters import VariationalKalmanFilter
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0]]))
        >>> trials = read_trials(model, [np.zeros((2, 1)), np.ones((3, 1))])
        >>> trace = scan_trials(VariationalKalmanFilter(), model, trials, jax.random.key(0))
        >>> trace.belief.mean.shape
        (64, 2)
    """
    if side_by_side is None:
        independent = type(filter).restart is Filter.restart
        many, long = (MANY, LONG) if jax.default_backend() == "cpu" else (2, 0)
        enough = len(trials.lengths) >= many and len(trials.fresh) >= long
        side_by_side = independent and enough and side_by_side_pays(model)
    ys, masks, us, fresh = fill_up(trials)
    if not side_by_side:
        options = {"key": key, "fresh": fresh, "predictions": predictions}
        return scan_filter(filter, model, ys, masks, us, **options)[1]
    num, ends = len(trials.fresh), np.cumsum(trials.lengths)
    columns = (np.split(array, ends[:-1]) for array in trials[:3])
    sessions = [Session(*each) for each in zip(*columns, strict=True)]
    # Use the same random numbers as for trials filtered one after another.
    keys, firsts = jnp.broadcast_to(key, (len(ends), *key.shape)), ends - trials.lengths
    scanned = scan_checked(filter, model, sessions, firsts, keys=keys, predictions=predictions)
    rows = np.minimum(np.arange(len(fresh)), num - 1)
    return jax.tree.map(
        lambda *leaves: np.concatenate(leaves)[rows], *(trace for _, trace in scanned)
    )


def estimate_trials(
    filter: VariationalKalmanFilter,
    model: Model,
    trials: Trials,
    key: Key,
    given: str = "past",
    rates: bool = True,
    per: float = 1.0,
) -> Estimates:
    """Filter or smooth trials, each from the initial belief; return `Estimates` of all bins.

    Args:
        filter: The filter.
        model: The model.
        trials: The recording.
        key: JAX random key, for filters and likelihoods that sample.
        given: "past" to filter: each bin is estimated from this bin and earlier bins of its trial;
            rates and one-step predictions are returned too. "all" to smooth: each bin is estimated
            from all bins of its trial; rates are returned too.
        rates: False to leave out rates and predictions.
        per: Number by which expected observations are divided to give rates: the bin width for
            counts, 1 for signals.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0]]))
        >>> trials = read_trials(model, [np.zeros((2, 1)), np.ones((3, 1))])
        >>> estimates = estimate_trials(VariationalKalmanFilter(), model, trials, jax.random.key(0))
        >>> estimates.mean.shape, estimates.predicted.shape
        ((5, 2), (5, 1))
    """
    if given == "past":
        trace = scan_trials(filter, model, trials, key, predictions=rates)
        estimates = summarise(model, trace, rates, per=per)
    else:
        mean, cov, info = smooth(filter, model, *fill_up(trials), key)
        estimates = Estimates(np.asarray(mean), np.asarray(cov), np.asarray(info.elbo))
        if rates:
            trace = Trace(jax.vmap(model.family.from_moments)(mean, cov), info)
            estimates = estimates._replace(rates=summarise(model, trace, per=per).rates)
    # Rows taken by an index array are copies, which the caller can change.
    return estimates.rows(np.arange(len(trials.fresh)))

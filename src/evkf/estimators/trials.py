"""Recordings as people have them: an array, or a list of trials of different lengths.

Trials are laid end to end with a mark where each begins, and filled up with unobserved bins to a
power of two, so that a new length seldom means another compilation; or side by side. Results are
cut back to the bins that were given.
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
"""Trials, and bins of all of them, from which on a CPU is faster with trials side by side."""


class Trials(NamedTuple):
    """Trials end to end.

    Attributes:
        ys: Observations, zero where masked.
        masks: True where observed.
        us: Inputs.
        fresh: True where a trial begins.
        lengths: Bins of every trial.
        many: True if they were given as a list.
    """

    ys: Float[np.ndarray, "T N"]
    masks: Bool[np.ndarray, "T N"]
    us: Float[np.ndarray, "T U"]
    fresh: Bool[np.ndarray, " T"]
    lengths: tuple[int, ...]
    many: bool

    def split(self, estimates: Estimates) -> Estimates | list[Estimates]:
        """Cut estimates of all bins into trials, if these were given as a list."""
        if not self.many:
            return estimates
        ends = zip(self.lengths, np.cumsum(self.lengths), strict=True)
        return [estimates.rows(slice(end - length, end)) for length, end in ends]


def count_columns(X: Any, name: str = "X", columns: str = "neurons") -> int:
    """Return the columns of an array of bins, or of the first of several.

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
    """Check a recording against a model; nothing is reshaped, cast away or dropped.

    Args:
        model: The model.
        X: Observations, (bins, neurons), or a list of such trials.
        masks: True where observed, of the shape of X or (bins,) for whole bins; all when left out.
        inputs: Inputs, (bins, inputs).
        follows: True if a single array goes on where the one before ended.

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
    """Check one bin, as `read_trials` does.

    Args:
        model: The model.
        x: Observations, (neurons,).
        mask: True where observed, (neurons,).
        inputs: The input, (inputs,).
        fresh: True if it is the first of a trial.

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
    """Return checked observations (zero where masked), masks and inputs of consecutive bins."""
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
    """Return several recordings as one.

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
    """Return observations, masks, inputs and trial starts, filled up to a power of two of bins.

    Bins that are added are not observed, and are trials of their own.

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
    """Filter every trial from the initial state on; return the bins of all, filled up at the end.

    Args:
        filter: The filter.
        model: The model.
        trials: The trials.
        key: Randomness.
        predictions: True for one-step predictions too.
        side_by_side: True to filter all trials at once, which needs a filter that carries nothing
            from one to the next. Only as many bins follow one another as the longest trial has,
            which is what a GPU waits for. A CPU gains less: it computes the bins added too, and
            every bin takes as long as the slowest. When left out, what is faster here.

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
    # The same randomness as end to end.
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
    """Filter or smooth every trial from the initial state on.

    Args:
        filter: The filter.
        model: The model.
        trials: The trials.
        key: Randomness.
        given: "past" to filter, with rates and one-step predictions; "all" to smooth, with rates.
        rates: False to leave out rates and predictions.
        per: Number by which expected observations are divided to give rates.

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
    # Rows by index are copies, which can be written to.
    return estimates.rows(np.arange(len(trials.fresh)))

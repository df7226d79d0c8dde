"""Recordings as people have them: an array, or a list of trials of different lengths.

Trials are laid end to end with a mark where each begins, and filled up with unobserved bins to a
power of two, so that a new length seldom means another compilation; or side by side. Results are
cut back to the bins that were given.
"""

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from evkf.data.installed import need
from evkf.errors import InputError
from evkf.families import Family
from evkf.filters import Filter, scan_filter
from evkf.filters.batched import SHORTEST, Session, read_session, scan_checked, side_by_side_pays
from evkf.model import Model
from evkf.types import Belief, Key

MANY, LONG = 8, 1 << 15
"""Trials, and bins of all of them, from which on a CPU is faster with trials side by side."""

NAMES = {"ys": "X", "us": "inputs"}
"""What arguments of the library are called for people with arrays."""


AXES = {
    "mean": ("bin", "latent"),
    "cov": ("bin", "latent", "other_latent"),
    "rate": ("bin", "unit"),
}
"""Names of the axes of labelled arrays."""


class Trials(NamedTuple):
    """Trials end to end.

    Attributes:
        ys: Observations, zero where masked.
        masks: True where observed.
        us: Inputs.
        fresh: True where a trial begins.
        lengths: Bins of every trial.
        many: Whether a list was given.
    """

    ys: Float[np.ndarray, "T N"]
    masks: Bool[np.ndarray, "T N"]
    us: Float[np.ndarray, "T U"]
    fresh: Bool[np.ndarray, " T"]
    lengths: tuple[int, ...]
    many: bool

    def split(self, array: np.ndarray) -> Any:
        """Cut an array of all bins into trials, if a list of them was given."""
        return np.split(array, np.cumsum(self.lengths)[:-1]) if self.many else array


class Filtered(NamedTuple):
    """What the filter believed of every bin, as NumPy arrays."""

    belief: Belief
    mean: Float[np.ndarray, "T L"]
    cov: Float[np.ndarray, "T L L"]
    elbo: Float[np.ndarray, " T"]


def count_channels(X: Any) -> int:
    """Channels of an array of bins, or of the first of several.

    Example:
        >>> count_channels([np.zeros((3, 2)), np.zeros((4, 2))])
        2
    """
    first = X[0] if _many(X) else X
    if np.ndim(first) != 2:
        raise InputError(
            f"X with {np.ndim(first)} axes", "X", "pass (bins, neurons), or a list of such trials"
        )
    return np.shape(first)[1]


def read_trials(
    model: Model, X: Any, masks: Any = None, inputs: Any = None, follows: bool = False
) -> Trials:
    """Check a recording against a model; nothing is reshaped, cast away or dropped.

    Args:
        model: The model.
        X: Observations, (bins, neurons), or a list of such trials.
        masks: True where observed, of the shape of X or (bins,) for whole bins; all when left out.
        inputs: Inputs, (bins, inputs).
        follows: Whether a single array goes on where the one before ended.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0]]))
        >>> read_trials(model, [np.zeros((2, 1)), np.ones((3, 1))]).fresh
        array([ True, False,  True, False, False])
    """
    many = _many(X)
    given = {"masks": masks, "inputs": inputs}
    trials = list(X) if many else [X]
    for name, value in given.items():
        if many and value is not None and len(value) != len(trials):
            raise InputError(
                f"{len(value)} {name} for {len(trials)} trials", name, "pass one for every trial"
            )
        given[name] = value if many and value is not None else [value] * len(trials)
    read = [
        _read_one(model, *each, trial=index if many else None)
        for index, each in enumerate(zip(trials, *given.values(), strict=True))
    ]
    if sum(part.lengths[0] for part in read) == 0:
        raise InputError("no bins", "X", "pass one or more")
    if follows and not many:
        read[0].fresh[:] = False
    return join(read)._replace(many=many)


def read_one_bin(
    model: Model, y: ArrayLike, mask: ArrayLike | None, u: ArrayLike | None, fresh: bool
) -> Trials:
    """Check one bin, as `read_trials` does; what is wrong is told in its words.

    Args:
        model: The model.
        y: Observations, (neurons,).
        mask: True where observed, (neurons,).
        u: The input, (inputs,).
        fresh: Whether it is the first of a trial.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0]]))
        >>> read_one_bin(model, [-1.0], None, None, fresh=True)
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: negative count -1.0 (in y[0]): pass spike counts, or mask the entry
    """
    channels, inputs = model.likelihood.num_channels, model.dynamics.num_inputs
    for name, x, size in (("y", y, channels), ("mask", mask, channels), ("u", u, inputs)):
        if x is not None and np.shape(x) != (size,):
            raise InputError(f"{name} of shape {np.shape(x)}", name, f"pass shape ({size},)")
    Y, masks, us = (None if x is None else np.asarray(x)[None] for x in (y, mask, u))
    try:
        found = read_trials(model, Y, masks, us)
    except InputError as error:
        raise _of_one_bin(error) from None
    return found._replace(fresh=np.asarray([bool(fresh)]))


def _of_one_bin(error: InputError) -> InputError:
    """An error of a recording of one bin, in words of that bin."""
    name, _, index = error.where.partition("[0")
    where = {"X": "y", "masks": "mask", "inputs": "u"}.get(name, name)
    place = f"[{index.strip('], ')}]" if index.strip("], ") else ""
    remedy = error.remedy.replace("in masks", "in mask").replace("(bins, ", "(")
    return InputError(error.what, where + place, remedy)


def join(parts: Sequence[Trials]) -> Trials:
    """One recording after another.

    Example:
        >>> bins = np.zeros((2, 1)), np.ones((2, 1), bool), np.zeros((2, 0)), np.zeros(2, bool)
        >>> join([Trials(*bins, (2,), False)] * 3).lengths
        (2, 2, 2)
    """
    ys, masks, us, fresh = (
        np.concatenate(arrays) for arrays in zip(*(p[:4] for p in parts), strict=True)
    )
    return Trials(ys, masks, us, fresh, sum((part.lengths for part in parts), ()), parts[0].many)


def filled_up(trials: Trials) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Observations, masks, inputs and starts with unobserved bins at the end, a trial of their own.

    Example:
        >>> bins = np.ones((70, 1)), np.ones((70, 1), bool), np.zeros((70, 0)), np.zeros(70, bool)
        >>> [array.shape for array in filled_up(Trials(*bins, (70,), False))]
        [(128, 1), (128, 1), (128, 0), (128,)]
    """
    num = len(trials.fresh)
    size = _power_of_two(num)
    ys, masks, us, fresh = (
        np.concatenate([array, np.zeros((size - num, *array.shape[1:]), array.dtype)])
        for array in trials[:4]
    )
    fresh[num:] = True
    return ys, masks, us, fresh


def filter_trials(filter: Filter, model: Model, trials: Trials, key: Key) -> Filtered:
    """Filter every trial from the initial state on.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.filters import VariationalKalmanFilter
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0]]))
        >>> trials = read_trials(model, [np.zeros((2, 1)), np.ones((3, 1))])
        >>> filter_trials(VariationalKalmanFilter(), model, trials, jax.random.key(0)).mean.shape
        (5, 2)
    """
    if _faster_side_by_side(filter, model, trials):
        return filter_side_by_side(filter, model, trials, key)
    ys, masks, us, fresh = filled_up(trials)
    _, trace = scan_filter(filter, model, ys, masks, us, key=key, fresh=fresh)
    return _filtered(model, trace.belief, trace.info.elbo, len(trials.fresh))


def filter_side_by_side(filter: Filter, model: Model, trials: Trials, key: Key) -> Filtered:
    """The same with all trials at once, for filters that carry nothing from one to the next.

    Only as many bins follow one another as the longest trial has, which is what a GPU waits for. A
    CPU gains less: it computes what is filled up too, and every bin takes as long as the slowest.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.filters import VariationalKalmanFilter
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0]]))
        >>> trials = read_trials(model, [np.zeros((2, 1)), np.ones((3, 1))])
        >>> found = filter_side_by_side(VariationalKalmanFilter(), model, trials, jax.random.key(0))
        >>> found.mean.shape
        (5, 2)
    """
    num, ends = len(trials.fresh), np.cumsum(trials.lengths)
    columns = (np.split(array, ends[:-1]) for array in trials[:3])
    sessions = [Session(*each) for each in zip(*columns, strict=True)]
    # the same randomness as end to end
    keys, firsts = jnp.broadcast_to(key, (len(ends), *key.shape)), ends - trials.lengths
    found = scan_checked(filter, model, sessions, firsts, keys=keys)
    last = np.full(_power_of_two(num) - num, num - 1)
    rows = np.concatenate([np.arange(num), last])
    belief, elbo = jax.tree.map(
        lambda *leaves: np.concatenate(leaves)[rows],
        *((trace.belief, trace.info.elbo) for _, trace in found),
    )
    return _filtered(model, belief, elbo, num)


def _faster_side_by_side(filter: Filter, model: Model, trials: Trials) -> bool:
    if type(filter).restart is not Filter.restart:
        return False  # what it learns in a trial it takes on to the next
    on_cpu = jax.default_backend() == "cpu"
    many, long = (MANY, LONG) if on_cpu else (2, 0)
    return side_by_side_pays(model) and len(trials.lengths) >= many and len(trials.fresh) >= long


def _power_of_two(num: int) -> int:
    return max(SHORTEST, 1 << (num - 1).bit_length())


def _filtered(model: Model, belief: Belief, elbo: Any, num: int) -> Filtered:
    found = belief, *_moments(model.family, belief), elbo
    return Filtered(*jax.tree.map(lambda leaf: np.array(leaf[:num]), found))


def results(trials: Trials, mean: np.ndarray, cov: np.ndarray | None, as_xarray: bool) -> Any:
    """Means, and covariances if there are any, of every bin in the form that was asked for.

    Example:
        >>> bins = np.ones((2, 1)), np.ones((2, 1), bool), np.zeros((2, 0)), np.zeros(2, bool)
        >>> trials = Trials(*bins, lengths=(1, 1), many=True)
        >>> results(trials, np.array([[1.0], [2.0]]), None, as_xarray=False)
        [array([[1.]]), array([[2.]])]
    """

    def finished(array: np.ndarray, name: str) -> Any:
        parts = trials.split(array)
        if not as_xarray:
            return parts
        labelled = partial(import_xarray().DataArray, dims=AXES[name], name=name)
        return [labelled(part) for part in parts] if trials.many else labelled(parts)

    means = finished(mean, "mean")
    return means if cov is None else (means, finished(cov, "cov"))


def import_xarray() -> ModuleType:
    """xarray, or an error that says how to get it.

    Example:
        >>> import_xarray().__name__
        'xarray'
    """
    need("a labelled array", "xarray", "xarray")
    import xarray

    return xarray


@jax.jit
def _moments(family: Family, beliefs: Belief) -> tuple[Array, Array]:
    return jax.vmap(family.mean)(beliefs), jax.vmap(family.cov)(beliefs)


def _many(X: Any) -> bool:
    return isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) > 1


def _read_one(
    model: Model, X: ArrayLike, masks: ArrayLike | None, us: ArrayLike | None, trial: int | None
) -> Trials:
    try:
        session = read_session(model, X, masks, us, trial)
    except InputError as error:
        name, bracket, index = error.where.partition("[")
        where = f"{NAMES.get(name, name)}{bracket}{index}"
        raise InputError(error.what, where, error.remedy) from None
    fresh = np.zeros(len(session.ys), bool)
    fresh[:1] = True
    return Trials(*session, fresh, (len(fresh),), False)

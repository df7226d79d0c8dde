"""`scan_sessions`: filter many sessions of different lengths under one model.

Sessions of similar length are filtered in parallel (`jax.vmap`) in one scan. Shorter sessions are
padded at the end; in the padding the filter state of a session does not change. On a CPU the
parallel scan is faster only for models of few latents; for larger models, every core filters one
session after another. Numbers of bins and of sessions are rounded up to a few sizes, so that a new
size seldom needs another compilation. `lean.py` has a faster step for GPUs.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.filters import lean
from evkf.filters.base import (
    Filter,
    State,
    Trace,
    check_filter,
    check_observations,
    check_state,
    filter_bin,
    read_key,
)
from evkf.model import Model, read_inputs
from evkf.numerics.linalg import tree_where
from evkf.types import Key

SHORTEST = 64
"""Smallest number of bins after padding."""

MOST_WORK = 2
"""In a group of sessions that are filtered in parallel: largest ratio of the number of bins after
padding to the number before.
"""


FEW_LATENTS, MANY_LATENTS = 3, 24
"""Up to the first number of latents, a CPU is faster filtering sessions in parallel (vmap) than one
after another. Above the second number, XLA (JAX's compiler) distributes a single step over the
cores, and sessions are filtered in one thread.
"""


Bins = tuple[Array, Array, Array]
"""Observations, masks and inputs. The first axis is time; the second is sessions, if there are
several.
"""


class Session(NamedTuple):
    """The bins of one session, after checks: observations (zero where masked), masks, inputs."""

    ys: Float[np.ndarray, "T N"]
    masks: Bool[np.ndarray, "T N"]
    us: Float[np.ndarray, "T U"]


def scan_sessions(
    filter: Filter,
    model: Model,
    ys: Sequence[ArrayLike],
    masks: Sequence[ArrayLike | None] | None = None,
    us: Sequence[ArrayLike] | None = None,
    states: Sequence[State] | None = None,
    key: Key | None = None,
    firsts: Sequence[int] | None = None,
) -> list[tuple[State, Trace]]:
    """Filter many sessions, each independently of the others, as `scan_filter` would.

    A filter that learns starts from the same model in every session, and learns from that session
    only.

    Args:
        filter: Any filter.
        model: The state-space model of all sessions.
        ys: Observations, one array (bins, channels) for each session; numbers of bins may differ.
        masks: True where observed, one array for each session as in `scan_filter`; None instead of
            an array if all entries of that session were observed.
        us: Inputs, one array (bins, inputs) for each session.
        states: Filter states to continue from, one for each session; `filter.init(model)` when left
            out.
        key: JAX random key, for filters that sample; session i uses `jax.random.fold_in(key, i)`.
        firsts: Index of the first bin of each session, as in `scan_filter`; 0 when left out.

    Returns:
        For each session, in the given order: the last filter state, and the beliefs and diagnostics
        of the given bins without padding, as NumPy arrays.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.filters import VariationalKalmanFilter
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0], [0.0, 1.0]]))
        >>> days = [np.ones((40, 2)), np.zeros((55, 2)), np.ones((9, 2))]
        >>> found = scan_sessions(VariationalKalmanFilter(), model, days)
        >>> [trace.belief.mean.shape for _, trace in found]
        [(40, 2), (55, 2), (9, 2)]
    """
    check_filter(filter)
    if not isinstance(ys, Sequence) and np.ndim(ys) != 3:
        what = f"observations of type {type(ys).__name__}"
        if isinstance(ys, np.ndarray | jax.Array):
            what = f"observations of shape {ys.shape}"
        raise InputError(what, "ys", "pass a list of sessions, each (bins, channels)")
    num = len(ys)
    if not num:
        raise InputError("no sessions", "ys", "pass the observations of one or more")
    for name, given in (("masks", masks), ("us", us), ("states", states), ("firsts", firsts)):
        if given is not None and len(given) != num:
            what = f"{len(given)} {name} for {num} sessions"
            raise InputError(what, name, "pass one for every session")
    none = [None] * num
    each = zip(ys, none if masks is None else masks, none if us is None else us, strict=True)
    sessions = [read_session(model, *given, index) for index, given in enumerate(each)]
    if states is not None:
        like = filter.init(model)
        states = [check_state(state, like, f"states[{i}]") for i, state in enumerate(states)]
    keys = None
    if key is not None:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(read_key(key, ""), jnp.arange(num))
    begin = np.zeros(num, int) if firsts is None else np.asarray(firsts)
    return scan_checked(filter, model, sessions, begin, states, keys)


def read_session(
    model: Model, ys: ArrayLike, masks: ArrayLike | None, us: ArrayLike | None, index: int | None
) -> Session:
    """Check the arrays of one session, and return them as a `Session`.

    Raise InputError if an array does not fit the model. The error names the argument together with
    `index`, the number of the session in the list; pass None if there is no list.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(VanDerPol(), Poisson([[1.0, 0.0]]))
        >>> session = read_session(model, [[1], [0], [2]], [True, False, True], None, index=3)
        >>> session.masks.tolist()
        [[True], [False], [True]]
    """
    try:
        observed, seen = check_observations(model, ys, masks)
        return Session(observed, seen, np.asarray(read_inputs(model, us, len(observed))))
    except InputError as error:
        if index is None:
            raise
        name, bracket, cell = error.where.partition("[")
        where = f"{name}[{index}]{bracket}{cell}"
        raise InputError(error.what, where, error.remedy) from None


def scan_checked(
    filter: Filter,
    model: Model,
    sessions: Sequence[Session],
    firsts: Int[np.ndarray, " S"],
    states: Sequence[State] | None = None,
    keys: Array | None = None,
    predictions: bool = False,
) -> list[tuple[State, Trace]]:
    """Filter sessions that were checked by `read_session`; return one (state, trace) for each.

    Args:
        filter: Any filter.
        model: The state-space model of all sessions.
        sessions: The checked sessions.
        firsts: Index of the first bin of each session.
        states: Filter states to continue from; `filter.init(model)` when left out.
        keys: JAX random keys, one for each session; None for filters that do not sample.
        predictions: True to return the one-step predictions too.
    """
    if states is None:
        states = [filter.init(model)] * len(sessions)
    scan = _side_by_side if side_by_side_pays(model) else _one_by_one
    scanned = dict(scan(filter, model, sessions, firsts, states, keys, predictions))
    return [scanned[i] for i in range(len(sessions))]


def side_by_side_pays(model: Model) -> bool:
    """Return True if filtering sessions in parallel (vmap) is faster than one after another.

    This is so on a GPU, and on a CPU for models of at most `FEW_LATENTS` latents.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> side_by_side_pays(Model(VanDerPol(), Poisson([[1.0, 0.0]])))
        True
    """
    return jax.default_backend() != "cpu" or model.family.dim <= FEW_LATENTS


def _one_by_one(
    filter: Filter,
    model: Model,
    sessions: Sequence[Session],
    firsts: Int[np.ndarray, " S"],
    states: Sequence[State],
    keys: Array | None,
    predictions: bool,
) -> Iterator[tuple[int, tuple[State, Trace]]]:
    x64 = jnp.result_type(float) == jnp.float64

    def scan(i: int) -> tuple[int, tuple[State, Trace]]:
        # JAX keeps the precision setting per thread: set it in this thread too.
        with jax.enable_x64(x64):
            return i, scan_one(i)

    def scan_one(i: int) -> tuple[State, Trace]:
        num = len(sessions[i].ys)
        num_bins = filled(max(num, SHORTEST))
        ys, masks, us = (_lay_side_by_side([x], num_bins, 1)[:, 0] for x in sessions[i])
        bins = jax.tree.map(jnp.asarray, (ys, masks, us))
        own = None if keys is None else keys[i]
        scanned = _scan_one(filter, model, bins, num, firsts[i], states[i], own, predictions)
        last, trace = jax.device_get(scanned)
        return last, _cut(trace, slice(num))

    num_threads = (os.cpu_count() or 1) if model.family.dim <= MANY_LATENTS else 1
    with ThreadPoolExecutor(num_threads) as pool:
        yield from pool.map(scan, range(len(sessions)))


def _side_by_side(
    filter: Filter,
    model: Model,
    sessions: Sequence[Session],
    firsts: Int[np.ndarray, " S"],
    states: Sequence[State],
    keys: Array | None,
    predictions: bool,
) -> Iterator[tuple[int, tuple[State, Trace]]]:
    lengths = np.array([len(session.ys) for session in sessions])
    for group in group_lengths(lengths):
        num_bins, num = filled(max(lengths[group[0]], SHORTEST)), filled(len(group))
        # Round the number of sessions up with copies of the first session; their results are
        # dropped.
        rows = np.array([*group, *group[:1] * (num - len(group))])
        own = np.where(np.arange(num) < len(group), lengths[rows], 0)
        columns = zip(*(sessions[i] for i in group), strict=True)
        ys, masks, us = (_lay_side_by_side(arrays, num_bins, num) for arrays in columns)
        bins = jax.tree.map(jnp.asarray, (ys, masks, us))
        given = jax.device_get([states[i] for i in rows])
        begin = jax.tree.map(lambda *leaves: np.stack(leaves), *given)
        own_keys = None if keys is None else keys[rows]
        last, trace = jax.device_get(
            _scan_many(filter, model, bins, own, firsts[rows], begin, own_keys, predictions)
        )
        for column, i in enumerate(group):
            yield i, (_cut(last, column), _cut(trace, slice(lengths[i]), column))


@partial(jax.jit, static_argnames="predictions")
def _scan_one(
    filter: Filter,
    model: Model,
    bins: Bins,
    length: Int[Array, ""],
    first: Int[Array, ""],
    state: State,
    key: Key | None,
    predictions: bool,
) -> tuple[State, Trace]:
    """Filter one padded session; return the filter state after `length` bins, and the trace."""

    def body(carry: tuple[Any, ...], bin: Bins) -> tuple[Any, ...]:
        state, t = carry
        own = None if key is None else jax.random.fold_in(key, first + t)
        new, row = filter_bin(filter, model, state, *bin, own, predictions)
        state = tree_where(t < length, new, state)
        return (state, t + 1), row._replace(belief=state.belief)

    (state, _), trace = jax.lax.scan(body, (state, jnp.zeros_like(length)), bins)
    return state, trace


@partial(jax.jit, static_argnames="predictions")
def _scan_many(
    filter: Filter,
    model: Model,
    bins: Bins,
    lengths: Int[Array, " B"],
    firsts: Int[Array, " B"],
    states: State,
    keys: Array | None,
    predictions: bool,
) -> tuple[State, Trace]:
    """Filter padded sessions in parallel (vmap); return the last filter states, and the trace.

    In the inputs `bins` and in the trace, the first axis is bins and the second is sessions.
    """

    def step(state: State, y: Array, mask: Array, u: Array, t: Array, key: Key | None):
        own = None if key is None else jax.random.fold_in(key, t)
        return filter_bin(filter, model, state, y, mask, u, own, predictions)

    def body(carry: tuple[Any, ...], bin: Bins) -> tuple[Any, ...]:
        states, t = carry
        if quick:
            new, info = lean.step_many(filter, model, states, *bin[:2])
            rows = Trace(new.belief, info)
        else:
            new, rows = jax.vmap(step)(states, *bin, firsts + t, keys)
        states = jax.vmap(tree_where)(t < lengths, new, states)
        return (states, t + 1), rows._replace(belief=states.belief)

    quick = jax.default_backend() == "gpu" and lean.applies(filter, model, len(lengths))
    quick = quick and not predictions
    (states, _), trace = jax.lax.scan(body, (states, jnp.zeros_like(lengths[0])), bins)
    return states, trace


def group_lengths(lengths: Sequence[int] | np.ndarray) -> list[list[int]]:
    """Return groups of sessions to filter in parallel: few groups, and little padding.

    Sessions are taken in order of length, the longest first. A session joins the current group
    unless the padded bins of the group would exceed `MOST_WORK` times the given bins.

    Args:
        lengths: Number of bins of each session.

    Returns:
        Lists of indices into `lengths`.

    Example:
        >>> group_lengths([500, 90, 30_000, 480])
        [[2], [0, 3, 1]]
    """
    groups: list[list[int]] = []
    size, work = 0, 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        given = work + max(int(lengths[i]), SHORTEST)
        if groups and size * (len(groups[-1]) + 1) <= MOST_WORK * given:
            groups[-1].append(i)
            work = given
        else:
            groups.append([i])
            work = max(int(lengths[i]), SHORTEST)
            size = filled(work)
    return groups


def filled(num: int) -> int:
    """Return the padded size: the number rounded up, to at most a quarter more than the number.

    Between a power of two and the next there are only four padded sizes.

    Example:
        >>> [filled(num) for num in (1, 7, 9, 65, 1000, 1025)]
        [1, 7, 10, 80, 1024, 1280]
    """
    step = 1 << max(int(num - 1).bit_length() - 3, 0)
    return -(-int(num) // step) * step


def _lay_side_by_side(arrays: Sequence[np.ndarray], num_bins: int, num: int) -> np.ndarray:
    """Return one array, (num_bins, num, ...), from arrays of sessions; the padding is zero."""
    whole = np.zeros((num_bins, num, *arrays[0].shape[1:]), arrays[0].dtype)
    for column, array in enumerate(arrays):
        whole[: len(array), column] = array
    return whole


def _cut(tree: Any, *index: int | slice) -> Any:
    return jax.tree.map(lambda leaf: np.array(leaf[(*index, ...)]), tree)

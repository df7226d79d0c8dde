"""Training on a recording before the stream begins."""

import math
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.filters.base import read_fresh, read_observations
from evkf.learning.learner import Learner
from evkf.learning.optimiser import adam
from evkf.learning.replay import Ring, windows
from evkf.learning.state import LearnerState
from evkf.model import Model, read_inputs
from evkf.numerics.checks import check_positive, check_positive_whole, read_array
from evkf.numerics.linalg import tree_where
from evkf.parameters import bound_noise, free, split
from evkf.types import Belief, Key, Scalar

MIN_STD = 1e-3
"""Floor of the noise fitted to given states, which may be as smooth as one likes."""

Recording = tuple[Array, Array, Array, Array]
"""Observations, masks, inputs and trial starts, time first."""


def pretrain(
    learner: Learner,
    start: Model | LearnerState,
    ys: ArrayLike,
    masks: ArrayLike | None = None,
    us: ArrayLike | None = None,
    fresh: ArrayLike | None = None,
    passes: int = 20,
    batch: int = 16,
    window: int = 50,
    steps: int | None = None,
    optimiser: optax.GradientTransformation | None = None,
    key: Key | None = None,
    progress: Callable[[int], None] | None = None,
) -> LearnerState:
    """Train a learner's model offline, by the learner's own loss.

    Every pass filters the recording with the present model, and then replays windows spread over
    it.

    Args:
        learner: What will learn the stream; its filter, loss, parts and floor of the noise are
            used.
        start: The model to start from, or a state whose model and frozen parts are kept.
        ys: Observations, (bins, channels), trials one after another.
        masks: True where observed, (bins, channels), or (bins,) for whole bins.
        us: Inputs, (bins, inputs).
        fresh: True where a trial begins, (bins,). The first bin is one.
        passes: How often the recording is gone through.
        batch: Windows in a gradient step.
        window: Bins in a window.
        steps: Gradient steps in a pass; as many as see every bin about once when left out.
        optimiser: Any optax optimiser; Adam with a rate that falls from 1e-2 when left out.
        key: Randomness, for filters and likelihoods that sample; a state has its own.
        progress: Told after every pass how many are done.

    Returns:
        A state to stream from: the trained model, the last bins of the recording in the ring, the
        filter before the first bin of a trial, and the optimiser at its start.

    Example:
        >>> import jax
        >>> from evkf.dynamics import ResidualMLP, VanDerPol
        >>> from evkf.likelihoods import Gaussian
        >>> from evkf.model import simulate
        >>> likelihood = Gaussian([[1.0, 0.0], [0.0, 1.0]], noise=0.1)
        >>> _, ys = simulate(Model(VanDerPol(), likelihood), jax.random.key(0), 100)
        >>> model = Model(ResidualMLP(2, 0.04, jax.random.key(1)), likelihood)
        >>> state = pretrain(Learner(ring=64), model, ys, passes=2, batch=2, window=10)
        >>> int(state.ring.count)
        64
    """
    model = start if isinstance(start, Model) else start.free.build()
    bins = _read(model, ys, masks, us, fresh)
    num = len(bins[0])
    check_positive_whole(passes=passes, batch=batch, window=window)
    if window >= num:
        raise InputError(f"windows of {window} bins", "window", f"pass less than {num} bins")
    steps = math.ceil(num / (batch * window)) if steps is None else steps
    check_positive_whole(steps=steps)
    if optimiser is None:
        optimiser = adam(decay=passes * steps, floor=0.05)
    state = learner.init(model, key)
    if isinstance(start, LearnerState):
        state = state._replace(thawed=start.thawed, key=start.key if key is None else state.key)
    same = (learner.filter, learner.loss, learner.parts, optimiser)
    settings = {"ring": num, "num_windows": batch, "window": window, "min_std": learner.min_std}
    offline = Learner(*same, **settings, average=1.0)
    training = offline.init(model)._replace(thawed=state.thawed, key=state.key)
    for done in range(passes):
        training = _pass(offline, training, bins, steps)
        if progress is not None:
            jax.block_until_ready(training.raw)
            progress(done + 1)
    training = _watch(offline, training, bins)
    return state._replace(
        free=training.free,
        raw=training.raw,
        filter=learner.filter.init(training.model),
        ring=_last(training.ring, state.ring),
        doubt=training.doubt,
        steps=training.steps,
    )


def _read(
    model: Model,
    ys: ArrayLike,
    masks: ArrayLike | None,
    us: ArrayLike | None,
    fresh: ArrayLike | None,
) -> Recording:
    observed, seen = read_observations(model, ys, masks)
    inputs, marks = read_inputs(model, us, len(observed)), read_fresh(fresh, len(observed))
    return observed, seen, inputs, marks.at[0].set(True)


@jax.jit
def _watch(learner: Learner, state: LearnerState, bins: Recording) -> LearnerState:
    """Filter the recording; a ring of its length then holds it from its beginning."""
    return lax.scan(lambda state, each: (learner.observe(state, *each)[0], None), state, bins)[0]


@partial(jax.jit, static_argnames="steps")
def _pass(learner: Learner, state: LearnerState, bins: Recording, steps: int) -> LearnerState:
    def descend(state: LearnerState, _: None) -> tuple[LearnerState, None]:
        drawn = windows(state.ring, state.steps, learner.num_windows, learner.window)[0]
        return learner._descend(state, drawn)[0], None

    return lax.scan(descend, _watch(learner, state, bins), length=steps)[0]


def _last(recording: Ring, ring: Ring) -> Ring:
    """An empty ring, filled with as much of the end of a recording as it holds."""
    num = min(len(recording.bins.fresh), len(ring.bins.fresh))
    held = jax.tree.map(lambda all, new: all.at[:num].set(new[-num:]), ring.bins, recording.bins)
    return ring._replace(bins=held, count=jnp.asarray(num, ring.count.dtype))


def fit_states(
    model: Model,
    states: ArrayLike,
    ys: ArrayLike,
    masks: ArrayLike | None = None,
    us: ArrayLike | None = None,
    fresh: ArrayLike | None = None,
    steps: int = 500,
    rate: float = 1e-2,
    batch: int = 256,
    key: Key | None = None,
) -> Model:
    """Fit a model to states found by another method, such as GPFA.

    Dynamics, noise and likelihood maximise $\\log p(z_t | z_{t-1}) + \\log p(y_t | z_t)$ over
    random bins by Adam. The first states of the trials give the moments of the prior, which with
    few trials are drawn towards those of all states.

    Args:
        model: The model to start from.
        states: $z_t$, (bins, latents), trials one after another.
        ys: Observations, (bins, channels).
        masks: True where observed, (bins, channels), or (bins,) for whole bins.
        us: Inputs, (bins, inputs).
        fresh: True where a trial begins, (bins,). The first bin is one.
        steps: Gradient steps.
        rate: Learning rate, which falls to zero.
        batch: Bins in a step.
        key: Randomness of the bins.

    Example:
        >>> import jax
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Gaussian
        >>> from evkf.model import simulate
        >>> true = Model(Linear([[0.9]], 0.1), Gaussian([[2.0]]))
        >>> zs, ys = simulate(true, jax.random.key(0), 300)
        >>> fitted = fit_states(Model(Linear([[0.0]], 1.0), Gaussian([[1.0]])), zs, ys)
        >>> bool(abs(fitted.dynamics.weight[0, 0] - 0.9) < 0.1)
        True
    """
    bins = _read(model, ys, masks, us, fresh)
    marks = np.asarray(bins[3])
    zs = read_array(states, (len(marks), model.dynamics.dim), "states")
    check_positive_whole(steps=steps, batch=batch)
    check_positive(rate=rate)
    if marks.all():
        raise InputError("trials of one bin", "fresh", "pass trials with transitions to learn from")
    key = jax.random.key(0) if key is None else key
    indices = jax.random.randint(key, (steps, batch), 0, len(marks))
    fitted, first = _fit(model, zs, bins, indices, adam(float(rate), decay=steps, floor=0.0))
    if not np.isfinite(first):
        raise InputError(
            "states at which the model has no finite density",
            "states",
            f"pass states inside the support of {type(model.dynamics.family).__name__}",
        )
    prior = _first_states(model, np.asarray(zs), marks)
    return eqx.tree_at(lambda m: m.prior, fitted, prior)


@partial(jax.jit, static_argnames="optimiser")
def _fit(
    model: Model,
    zs: Float[Array, "T L"],
    bins: Recording,
    indices: Int[Array, "steps batch"],
    optimiser: optax.GradientTransformation,
) -> tuple[Model, Scalar]:
    """The fitted model, and the loss of all bins before."""
    parts = ("dynamics", "noise", "readout", "observation")
    model = _place(model, zs)
    learned, rest = split(free(model, parts), parts)
    flat, unravel = ravel_pytree(learned)

    def loss(flat: Float[Array, " D"], index: Int[Array, " batch"]) -> Scalar:
        model = eqx.combine(unravel(flat), rest).build()

        def each(t: Int[Array, ""]) -> Scalar:
            y, mask, u, fresh = (array[t] for array in bins)
            ahead = model.dynamics.transition(zs[t - 1], u)
            moved = model.dynamics.family.log_prob(ahead, zs[t])
            return model.likelihood.log_prob(zs[t], y, mask) + jnp.where(fresh, 0, moved)

        return -jnp.mean(jax.vmap(each)(index))

    def body(carry: tuple, index: Int[Array, " batch"]) -> tuple:
        flat, memory = carry
        grad = jax.grad(loss)(flat, index)
        step, new = optimiser.update(grad, memory)
        moved = ravel_pytree(bound_noise(unravel(flat + step), MIN_STD))[0]
        return tree_where(jnp.all(jnp.isfinite(moved)), (moved, new), carry), None

    first = loss(flat, jnp.arange(len(zs)))
    (flat, _), _ = lax.scan(body, (flat, optimiser.init(flat)), indices)
    return eqx.combine(unravel(flat), rest).build(), first


def _place(model: Model, zs: Float[Array, "T L"]) -> Model:
    """Tell the dynamics where states have been."""
    if not isinstance(model.dynamics, GaussianDynamics):
        return model
    low, high = jnp.min(zs, axis=0), jnp.max(zs, axis=0)
    dynamics = model.dynamics.visited(low, jnp.zeros_like(low)).visited(high, jnp.zeros_like(high))
    return eqx.tree_at(lambda m: m.dynamics, model, dynamics)


def _first_states(model: Model, zs: np.ndarray, marks: np.ndarray) -> Belief:
    """The moments of first states, with one more whose spread is that of all states."""
    starts, dim = zs[marks], zs.shape[1]
    mean = starts.mean(axis=0)
    off = starts - mean
    spread = np.atleast_2d(np.cov(zs.T, bias=True)) + MIN_STD**2 * np.eye(dim)
    cov = (off.T @ off + spread) / len(off)
    return model.family.from_moments(jnp.asarray(mean), jnp.asarray(cov))

"""Offline training: `pretrain` by the learner's loss, or `fit_states` at given latent states.

`evkf.EVKF.fit` calls `pretrain` when it makes several passes. The reaching experiment calls
`fit_states` with latent states from GPFA.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

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
from evkf.learning.learner import Learner, LearnerState, adam, read_bins
from evkf.learning.ring import draw_windows
from evkf.model import Model
from evkf.numerics.checks import check_positive, check_positive_whole, read_array
from evkf.numerics.linalg import tree_where
from evkf.parameters import bound_noise, free, split
from evkf.types import Key, Scalar

MIN_STD = 1e-3
"""Smallest standard deviation of noise fitted to given latent states. Without this floor, noise
would vanish for very smooth states."""

Recording = tuple[Array, Array, Array, Array]
"""Observations, masks, inputs and trial starts; the first axis of each is time."""


class Pretraining(NamedTuple):
    """Settings of `pretrain`.

    Attributes:
        passes: Number of passes through the recording.
        batch: Number of windows (consecutive bins) in a gradient step.
        window: Number of bins in a window.
        steps: Number of gradient steps in a pass; None for as many as visit every bin about once.
        optimiser: Any optax optimiser; None for Adam with a learning rate that falls from 1e-2 to
            5e-4 over all passes.
    """

    passes: int = 20
    batch: int = 16
    window: int = 50
    steps: int | None = None
    optimiser: optax.GradientTransformation | None = None


class StateFitting(NamedTuple):
    """Settings of `fit_states`.

    Attributes:
        steps: Number of gradient steps.
        rate: Learning rate of the first step; the rate falls to zero.
        batch: Number of random bins in a gradient step.
    """

    steps: int = 500
    rate: float = 1e-2
    batch: int = 256


def pretrain(
    learner: Learner,
    start: Model | LearnerState,
    ys: ArrayLike,
    masks: ArrayLike | None = None,
    us: ArrayLike | None = None,
    fresh: ArrayLike | None = None,
    settings: Pretraining | None = None,
    progress: Callable[[int], None] | None = None,
) -> LearnerState:
    """Train a model offline on a recording, by the learner's own loss.

    In every pass, the recording is filtered with the present model. Then gradient steps are taken
    on windows (consecutive bins) spread over the recording.

    Args:
        learner: The learner of the stream that follows. Training uses `filter`, `loss`, `parts` and
            `min_std` of this learner.
        start: The model to start from, or a learner's state: training starts from the model in this
            state; its key and its frozen parts are kept.
        ys: Observations, (bins, channels); trials are concatenated.
        masks: True where observed, (bins, channels), or (bins,) for whole bins; all observed when
            left out.
        us: Inputs, (bins, inputs); required if the dynamics take inputs.
        fresh: True where a trial begins, (bins,). The first bin always begins a trial.
        settings: Passes, windows and optimiser; the defaults of `Pretraining` when left out.
        progress: Function that is called after every pass with the number of passes done.

    Returns:
        A learner's state from which a stream can go on. It has the trained model, the last bins of
        the recording in the ring, a filter state before the first bin of a trial, and an optimiser
        that has taken no step.

    Example:
        >>> import jax
        >>> from evkf.dynamics import ResidualMLP, VanDerPol
        >>> from evkf.likelihoods import Gaussian
        >>> from evkf.model import simulate
        >>> likelihood = Gaussian([[1.0, 0.0], [0.0, 1.0]], noise=0.1)
        >>> _, ys = simulate(Model(VanDerPol(), likelihood), jax.random.key(0), 100)
        >>> model = Model(ResidualMLP(2, 0.04, jax.random.key(1)), likelihood)
        >>> settings = Pretraining(passes=2, batch=2, window=10)
        >>> state = pretrain(Learner(ring=64), model, ys, settings=settings)
        >>> int(state.ring.count)
        64
    """
    passes, batch, window, steps, optimiser = settings or Pretraining()
    model = start if isinstance(start, Model) else start.free.build()
    bins = read_bins(model, ys, masks, us, fresh)
    bins = (*bins[:3], bins[3].at[0].set(True))
    num = len(bins[0])
    check_positive_whole(passes=passes, batch=batch, window=window)
    if window >= num:
        raise InputError(f"windows of {window} bins", "window", f"pass less than {num} bins")
    steps = math.ceil(num / (batch * window)) if steps is None else steps
    check_positive_whole(steps=steps)
    if optimiser is None:
        optimiser = adam(decay=passes * steps, floor=0.05)
    state = learner.init(model)
    if isinstance(start, LearnerState):
        state = state._replace(thawed=start.thawed, key=start.key)
    offline = Learner(
        learner.filter,
        learner.loss,
        learner.parts,
        optimiser,
        ring=num,
        num_windows=batch,
        window=window,
        average=1.0,
        min_std=learner.min_std,
    )
    training = offline.init(model)._replace(thawed=state.thawed, key=state.key)
    for done in range(passes):
        training = _pass(offline, training, bins, steps)
        if progress is not None:
            jax.block_until_ready(training.raw)
            progress(done + 1)
    training = _observe(offline, training, bins)
    # Store as many of the last bins of the recording as fit in the ring of the stream.
    ring, recorded = state.ring, training.ring.bins
    held = min(num, len(ring.bins.fresh))
    stored = jax.tree.map(lambda all, new: all.at[:held].set(new[-held:]), ring.bins, recorded)
    return state._replace(
        free=training.free,
        raw=training.raw,
        filter=learner.filter.init(training.model),
        ring=ring._replace(bins=stored, count=jnp.asarray(held, ring.count.dtype)),
        doubt=training.doubt,
        steps=training.steps,
    )


@jax.jit
def _observe(learner: Learner, state: LearnerState, bins: Recording) -> LearnerState:
    """Return the state after filtering a recording whose bins all fit in the ring."""
    return lax.scan(lambda state, each: (learner.observe(state, *each)[0], None), state, bins)[0]


@partial(jax.jit, static_argnames="steps")
def _pass(learner: Learner, state: LearnerState, bins: Recording, steps: int) -> LearnerState:
    def replay(state: LearnerState, _: object) -> tuple[LearnerState, None]:
        windows, _ = draw_windows(state.ring, state.steps, learner.num_windows, learner.window)
        return learner.replay_step(state, windows)[0], None

    return lax.scan(replay, _observe(learner, state, bins), length=steps)[0]


def fit_states(
    model: Model,
    states: ArrayLike,
    ys: ArrayLike,
    masks: ArrayLike | None = None,
    us: ArrayLike | None = None,
    fresh: ArrayLike | None = None,
    settings: StateFitting | None = None,
    key: Key | None = None,
) -> Model:
    r"""Fit a model to latent states from another method, such as GPFA, and return the fitted model.

    Dynamics, noise and likelihood are fitted by Adam: each step increases the mean over random bins
    of $\log p(z_t | z_{t-1}) + \log p(y_t | z_t)$, where $z_t$ is the given latent state and $y_t$
    the observation. The prior gets the mean of the first states of the trials. Its covariance is
    that of the first states plus the covariance of all states divided by the number of trials.

    Args:
        model: The model to start from.
        states: Latent states $z_t$, (bins, latents); trials are concatenated.
        ys: Observations, (bins, channels).
        masks: True where observed, (bins, channels), or (bins,) for whole bins; all observed when
            left out.
        us: Inputs, (bins, inputs); required if the dynamics take inputs.
        fresh: True where a trial begins, (bins,). The first bin always begins a trial.
        settings: Steps, learning rate and bins per step; the defaults of `StateFitting` when left
            out.
        key: JAX random key that chooses the bins; seed 0 when left out.

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
    steps, rate, batch = settings or StateFitting()
    bins = read_bins(model, ys, masks, us, fresh)
    bins = (*bins[:3], bins[3].at[0].set(True))
    marks = np.asarray(bins[3])
    zs = read_array(states, (len(marks), model.dynamics.dim), "states")
    check_positive_whole(steps=steps, batch=batch)
    check_positive(rate=rate)
    if marks.all():
        raise InputError("trials of one bin", "fresh", "pass trials with transitions to learn from")
    key = jax.random.key(0) if key is None else key
    indices = jax.random.randint(key, (steps, batch), 0, len(marks))
    fitted, first_loss = _fit(model, zs, bins, indices, adam(float(rate), decay=steps, floor=0.0))
    if not np.isfinite(first_loss):
        raise InputError(
            "states at which the model has no finite density",
            "states",
            f"pass states inside the support of {type(model.dynamics.family).__name__}",
        )
    # The prior has the mean of the first states. Its covariance is as if there were one more trial,
    # whose first state varied as all states do.
    everywhere, dim = np.asarray(zs), model.dynamics.dim
    first = everywhere[marks]
    mean = first.mean(axis=0)
    off = first - mean
    spread = np.atleast_2d(np.cov(everywhere.T, bias=True)) + MIN_STD**2 * np.eye(dim)
    cov = (off.T @ off + spread) / len(off)
    prior = model.family.from_moments(jnp.asarray(mean), jnp.asarray(cov))
    return eqx.tree_at(lambda m: m.prior, fitted, prior)


@partial(jax.jit, static_argnames="optimiser")
def _fit(
    model: Model,
    zs: Float[Array, "T L"],
    bins: Recording,
    indices: Int[Array, "steps batch"],
    optimiser: optax.GradientTransformation,
) -> tuple[Model, Scalar]:
    """Return the model fitted to states zs (except the prior), and the loss before fitting."""
    parts = ("dynamics", "noise", "readout", "observation")
    if isinstance(model.dynamics, GaussianDynamics):
        low, high = jnp.min(zs, axis=0), jnp.max(zs, axis=0)
        none = jnp.zeros_like(low)
        box = model.dynamics.visited(low, none).visited(high, none)
        model = eqx.tree_at(lambda m: m.dynamics, model, box)
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

"""A learner at work on a recording of which nothing is known beforehand.

The first bins are kept until there are enough of them to find a readout; then they are learned from
like all that follow, so that no bin is lost and none counts twice.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree
from numpy.typing import ArrayLike

from evkf.dynamics import Dynamics, ResidualMLP
from evkf.errors import InputError
from evkf.estimators.trials import Trials, join
from evkf.families import GaussianFamily
from evkf.filters import State, VariationalKalmanFilter
from evkf.learning import (
    CompiledLearner,
    Learner,
    LearnerState,
    Monitor,
    MonitorInfo,
    Watched,
    adam,
    scan_watched,
)
from evkf.learning.compiled import Outlook, look_out
from evkf.learning.optimiser import RISE
from evkf.learning.pretrain import pretrain
from evkf.learning.warm_up import KINDS
from evkf.learning.warm_up import warm_up as find_likelihood
from evkf.likelihoods import Likelihood
from evkf.model import Model
from evkf.numerics.checks import check_choice, check_whole, read_array
from evkf.parameters import PARTS
from evkf.types import Key

WINDOW, BATCH = 50, 16
"""Most bins in a window, and windows in a gradient step, where there are several passes."""

PARTS_OF_A_PASS, STEPS = 8, 500
"""Short recordings are cut into so many gradient steps at least, and all passes together take so
many, if need be by seeing bins more than once in a pass."""

LAST = 0.05
"""The rate that several passes end with, as a share of the first."""

NOISE = 0.04
"""Variance of the dynamics' noise to start from; states have a variance of about one."""

Find = Callable[..., Likelihood]


class NotFitted(InputError, AttributeError):
    """Something was asked of an estimator that has not seen enough bins.

    Example:
        >>> issubclass(NotFitted, ValueError), issubclass(NotFitted, AttributeError)
        (True, True)
    """


class Stream:
    """A learner, and what it is given.

    Args:
        learner: The learner.
        model: Where to start from.
        key: Randomness.
        find: Finds the likelihood from the first observations, masks and trial starts; None if that
            of the model is the one to use.
        num_bins: How many bins it takes for that.
        monitor: Watches the evidence, if there is one.
        rate: Learning rate that several passes start with. They end, and a stream that follows
            them goes on, with a twentieth of it.

    Example:
        >>> from evkf.dynamics import VanDerPol
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.estimators.trials import read_trials
        >>> model = Model(VanDerPol(), Poisson([[0.0, 0.0]]))
        >>> find = lambda ys, masks, fresh: Poisson([[1.0, 0.0]])
        >>> stream = Stream(Learner(ring=64), model, jax.random.key(0), find, num_bins=50)
        >>> stream.take(read_trials(model, np.ones((20, 1))))
        >>> stream.missing
        30
    """

    def __init__(
        self,
        learner: Learner,
        model: Model,
        key: Key,
        find: Find | None = None,
        num_bins: int = 0,
        monitor: Monitor | None = None,
        rate: float = 1e-2,
    ):
        self.learner, self.model, self.key, self.monitor = learner, model, key, monitor
        self.rate, self.trained = rate, False
        self.evidence: MonitorInfo | None = None
        self._find, self._num_bins = find, num_bins
        self._kept: list[Trials] = []
        self._state = self._start(model) if find is None else None
        self._waiting = find is not None
        self._live: CompiledLearner | None = None

    @property
    def missing(self) -> int:
        """How many bins are still missing for the warm-up."""
        if not self._waiting:
            return 0
        return self._num_bins - sum(len(part.fresh) for part in self._kept)

    @property
    def state(self) -> LearnerState:
        """Everything that the learner knows now."""
        known = self._everything
        return known.learner if isinstance(known, Watched) else known

    @property
    def _everything(self) -> LearnerState | Watched:
        if self._live is not None and not self._waiting:
            return self._live.state
        if self._state is None:
            what = f"{self.missing} bins are missing until there is a first readout"
            raise NotFitted(what, "EVKF", "go on with learn_one or partial_fit")
        return self._state

    def change(self, change: Callable[[LearnerState], LearnerState]) -> None:
        """Put another state in place of the learner's."""
        known = self._everything
        if isinstance(known, Watched):
            known = known._replace(learner=change(known.learner))
        else:
            known = change(known)
        if self._live is None:
            self._state = known
        else:
            self._live.state = known

    def fit(
        self, trials: Trials, passes: int, progress: Callable[[int], None] | None = None
    ) -> None:
        """Learn from a recording: bin by bin in one pass, in windows from all over it in several.

        The warm-up takes what there is of it. At the end the stream is where the recording ends.
        """
        told = progress or (lambda _: None)
        if passes > 1:
            self.go_on_trained()
        begun = self._begin(trials)
        if passes > 1:
            start = begun.learner if isinstance(begun, Watched) else begun
            state = self._pretrain(start, trials, passes, told)
            begun = begun._replace(learner=state) if isinstance(begun, Watched) else state
        elif self.monitor is None:
            begun, _ = self.learner.scan(begun, *trials[:4])
        else:
            watched = (self.learner, self.monitor, begun)
            begun, (_, _, evidence) = scan_watched(*watched, *trials[:4])
            self.evidence = jax.tree.map(lambda leaf: leaf[-1], evidence)
        if passes == 1:
            jax.block_until_ready(begun)
            told(1)
        self._state, self._live, self._waiting = begun, None, False

    def _pretrain(
        self, start: LearnerState, trials: Trials, passes: int, told: Callable[[int], None]
    ) -> LearnerState:
        """The learner with a model trained offline, where the recording ends."""
        num = len(trials.fresh)
        window = max(min(WINDOW, max(trials.lengths), num // PARTS_OF_A_PASS), 1)
        batch = int(np.clip(num // (PARTS_OF_A_PASS * window), 1, BATCH))
        steps = max(math.ceil(num / (batch * window)), math.ceil(STEPS / passes))
        trained = pretrain(
            self.learner,
            start,
            *trials[:4],
            passes=passes,
            batch=batch,
            window=window,
            steps=steps,
            optimiser=adam(self.rate, decay=passes * steps, floor=LAST),
            progress=told,
        )
        newest = jax.tree.map(lambda leaf: leaf[trained.ring.count - 1], trained.ring.bins)
        going_on = jnp.asarray(False)
        return trained._replace(filter=State(newest.belief), fresh=going_on)

    def go_on_trained(self) -> None:
        """Learn from now on at the rate that several passes end with: what they taught was learned
        from every bin many times, and is not to be shaken by the last few.
        """
        steady = adam(LAST * self.rate, floor=1.0)
        self.learner, self.trained = replace(self.learner, optimiser=steady), True

    def prepare(self) -> CompiledLearner:
        """Compile all that bins will need."""
        if self._live is None:
            state = self._start(self.model) if self._state is None else self._state
            live = CompiledLearner(self.learner, state, monitor=self.monitor)
            live.outlook(np.zeros(self.model.dynamics.num_inputs))
            self._live, self._state = live, None
        return self._live

    def take(self, trials: Trials) -> None:
        """Go through a recording bin by bin."""
        live = self.prepare()
        if self.missing > len(trials.fresh):
            self._kept.append(trials)
            return
        if self.missing:
            trials = join([*self._kept, trials])
            live.state = self._begin(trials)
            self._kept, self._waiting = [], False
        for bin in zip(*trials[:4], strict=True):
            said = live.observe(*bin)
            live.learn()
        self.evidence = live.evidence(said)

    def outlook(self, u: ArrayLike | None) -> Outlook:
        """The state now, and the next bin."""
        size = self.model.dynamics.num_inputs
        if u is None and size:
            raise InputError("no input", "u", f"pass shape ({size},): the dynamics take inputs")
        given = read_array(np.zeros(0) if u is None else u, (size,), "u")
        if self._live is not None and not self._waiting:
            return self._live.outlook(given)
        return _look_out(self.learner, self.state, given)

    def mean(self) -> Float[np.ndarray, " N"]:
        """Of the bins kept for the warm-up, channel by channel; NaN where none was observed."""
        if not self._kept:
            return np.full(self.model.likelihood.num_channels, np.nan)
        kept = join(self._kept)
        count = kept.masks.sum(axis=0)
        return np.where(count, kept.ys.sum(axis=0) / np.maximum(count, 1), np.nan)

    def tree(self) -> PyTree:
        """All arrays, to be stored."""
        if self.missing:
            return {"kept": join(self._kept)[:4]}
        return {"state": self._everything}

    def blank(self, kept: int) -> PyTree:
        """What `tree` gives when so many bins are kept, or none because the warm-up is done."""
        if not kept:
            return {"state": self._start(self.model)}
        dtype = jnp.result_type(float)
        channels, inputs = self.model.likelihood.num_channels, self.model.dynamics.num_inputs
        widths = ((channels,), dtype), ((channels,), bool), ((inputs,), dtype), ((), bool)
        return {"kept": tuple(np.zeros((kept, *shape), kind) for shape, kind in widths)}

    def restore(self, tree: PyTree) -> None:
        """Go on from what `tree` gave."""
        if "state" in tree:
            self._state, self._waiting = tree["state"], False
        else:
            ys, masks, us, fresh = tree["kept"]
            self._kept = [Trials(ys, masks, us, fresh, (len(ys),), False)]

    def _start(self, model: Model) -> LearnerState | Watched:
        state = self.learner.init(model, self.key)
        return state if self.monitor is None else Watched(state, self.monitor.init(model))

    def _begin(self, trials: Trials) -> Any:
        if self._find is None:
            return self._everything
        ys, masks, _, fresh = (array[: self._num_bins] for array in trials[:4])
        found = self._find(ys, masks=masks, fresh=fresh)
        model = eqx.tree_at(lambda model: model.likelihood, self.model, found)
        return self._start(model)


_look_out = jax.jit(look_out)


def open_stream(
    neurons: int,
    latents: int,
    likelihood: str | Likelihood,
    dynamics: str | Dynamics,
    bin_width: float,
    hidden: int | Sequence[int],
    warm_up: int,
    learn: Sequence[str] | None,
    loss: str,
    rate: float,
    steps: int,
    ring: int,
    watch: bool,
    num_inputs: int,
    seed: int,
) -> Stream:
    """A stream by the parameters of `evkf.estimators.evkf.EVKF`, which says what they mean.

    Example:
        >>> named = dict(likelihood="poisson", dynamics="mlp", loss="elbo", learn=None)
        >>> sizes = dict(latents=2, bin_width=0.01, hidden=8, warm_up=100, ring=64, num_inputs=0)
        >>> pace = dict(rate=1e-2, steps=1, watch=False)
        >>> open_stream(20, **named, **sizes, **pace, seed=0).missing
        100
    """
    whole = {"latents": (latents, 1), "num_inputs": (num_inputs, 0), "seed": (seed, 0)}
    for name, (value, least) in whole.items():
        check_whole(value, least, name)
    check_whole(warm_up, latents + 1, "warm_up")
    start_key, key = jax.random.split(jax.random.key(seed))
    if isinstance(dynamics, str):
        if dynamics != "mlp":
            raise InputError(f"unknown dynamics {dynamics!r}", "dynamics", "pass 'mlp'")
        dynamics = ResidualMLP(latents, NOISE, start_key, hidden, num_inputs)
    _check_sizes(dynamics, latents, num_inputs)
    find = None
    if isinstance(likelihood, str):
        find = partial(find_likelihood, latents=latents, likelihood=likelihood, bin_width=bin_width)
        likelihood = _unknown(likelihood, neurons, latents, bin_width)
    if learn is None:
        learn = PARTS if find else ("dynamics", "noise", "prior")
        if not isinstance(dynamics.family, GaussianFamily):
            learn = [part for part in learn if part != "prior"]
    pace = {"optimiser": adam(rate, warm_up=RISE), "steps": steps, "ring": ring}
    if isinstance(learn, str):
        raise InputError(f"learn = {learn!r}", "learn", f"pass a list, such as [{learn!r}]")
    # In gaps beliefs are wide, and a tangent at their mean says nothing of what becomes of them.
    filter = VariationalKalmanFilter(rule="moment_matching")
    learner = Learner(filter, loss, tuple(learn), **pace)
    monitor = Monitor(learner.filter) if watch else None
    return Stream(learner, Model(dynamics, likelihood), key, find, warm_up, monitor, rate)


def _unknown(kind: str, neurons: int, latents: int, bin_width: float) -> Likelihood:
    """A likelihood with a readout of zeros in place of the one to be found."""
    check_choice(kind, KINDS, "likelihood")
    if latents > neurons:
        raise InputError(f"{latents} latents of {neurons} neurons", "latents", "pass fewer")
    return KINDS[kind](np.zeros((neurons, latents)), bin_width=bin_width)


def _check_sizes(dynamics: Dynamics, latents: int, num_inputs: int) -> None:
    sizes = dynamics.dim, dynamics.num_inputs
    if sizes != (latents, num_inputs):
        raise InputError(
            f"dynamics of {sizes[0]} latents and {sizes[1]} inputs for latents={latents} and "
            f"num_inputs={num_inputs}",
            "dynamics",
            f"pass latents={sizes[0]} and num_inputs={sizes[1]}",
        )

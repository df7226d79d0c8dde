"""Make learner, monitor and model from the parameters of an `EVKF`, and learn from a recording."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from evkf.dynamics import Dynamics, ResidualMLP
from evkf.errors import InputError
from evkf.estimators.settings import Learning
from evkf.estimators.trials import Trials
from evkf.families import GaussianFamily
from evkf.filters import State, VariationalKalmanFilter
from evkf.filters.compiled import Packed
from evkf.learning import (
    CompiledLearner,
    Learner,
    LearnerState,
    Monitor,
    MonitoredState,
    MonitorInfo,
    Pretraining,
    adam,
    pretrain,
    scan_monitored,
    warm_up,
)
from evkf.learning.learner import RISE
from evkf.learning.monitor import learner_state, with_learner_state
from evkf.learning.warm_up import KINDS
from evkf.likelihoods import Likelihood
from evkf.model import Model
from evkf.numerics.checks import check_choice, check_whole
from evkf.parameters import PARTS
from evkf.types import Key, Scalar

WINDOW, BATCH = 50, 16
"""For training in several passes: largest number of bins in a window (consecutive bins), and
largest number of windows in a gradient step."""

STEPS_OF_A_PASS, STEPS = 8, 500
"""For training in several passes: smallest number of gradient steps of a pass, and of all passes
together. In short recordings, a pass then visits bins more than once."""

LAST = 0.05
"""Learning rate at the end of several passes, as a fraction of the first learning rate."""

NOISE = 0.04
"""Variance of the dynamics' noise before learning; latent states have a variance of about one."""


class NotFitted(InputError, AttributeError):
    """Error: an `EVKF` was asked for a result before it had observed enough bins.

    Example:
        >>> issubclass(NotFitted, ValueError), issubclass(NotFitted, AttributeError)
        (True, True)
    """


class Assembly(NamedTuple):
    """The objects that an `EVKF` makes from its parameters, and that learning does not change.

    Attributes:
        learner: Filter and settings of learning.
        monitor: Computes the evidence for the dynamics; None unless `Learning(watch=True)`.
        model: The model to start from. If a warm-up is to find the readout (weights and offsets of
            the likelihood), the weights are zero.
        key: JAX random key.
        settings: Parameters of the `EVKF`, by name.
        warm_up: Number of first bins from which a readout is found; 0 if the likelihood is given.
        trained: True once the model has been trained in several passes.
    """

    learner: Learner
    monitor: Monitor | None
    model: Model
    key: Key
    settings: dict[str, Any]
    warm_up: int
    trained: bool = False

    def init(self, model: Model) -> LearnerState | MonitoredState:
        """Return the learner's state before the first bin; with a monitor, a `MonitoredState`.

        Args:
            model: The model to start from, with a known readout.
        """
        state = self.learner.init(model, self.key)
        return state if self.monitor is None else MonitoredState(state, self.monitor.init(model))

    def begin(self, trials: Trials) -> LearnerState | MonitoredState:
        """Return the learner's state before the first bin, after finding a readout if needed.

        If the likelihood was chosen by name, its readout (weights and offsets) is estimated from
        the first `warm_up` bins of the trials. No bin is filtered yet.

        Args:
            trials: The recording, or the bins kept during the warm-up of a stream.
        """
        if not self.warm_up:
            return self.init(self.model)
        ys, masks, _, fresh = (array[: self.warm_up] for array in trials[:4])
        chosen = (self.settings[name] for name in ("latents", "likelihood", "bin_width"))
        likelihood = warm_up(ys, *chosen, masks=masks, fresh=fresh)
        return self.init(eqx.tree_at(lambda model: model.likelihood, self.model, likelihood))

    def after_training(self) -> "Assembly":
        """Return an `Assembly` for a stream that follows training in several passes.

        Its learning rate is constant, at 0.05 times the `rate` of the settings, and `trained` is
        True. Training has visited every bin many times; a higher rate would let the last few bins
        of the stream undo the result.
        """
        steady = adam(LAST * self.settings["learning"].rate, floor=1.0)
        return self._replace(learner=replace(self.learner, optimiser=steady), trained=True)


@dataclass
class FittedState:
    """Everything that an `EVKF` has learned.

    Attributes:
        assembly: Learner, monitor and starting model.
        kept: Bins kept during the warm-up (until a readout can be estimated); empty afterwards.
        warming: True until the warm-up is over.
        state: The learner's state; None during the warm-up, and when `live` holds the state.
        live: The compiled learner of a stream; None until a stream begins.
        result: Packed result of the last bin that `live` observed; None if there was no such bin.
        elbo: Bound $L_t$ of the last bin of `fit`; None if not computed. Used until `live` has
            observed a bin.
        evidence: Evidence for the dynamics after the last bin of `fit`; None if not computed.
    """

    assembly: Assembly
    kept: list[Trials] = field(default_factory=list)
    warming: bool = False
    state: LearnerState | MonitoredState | None = None
    live: CompiledLearner | None = None
    result: Packed | None = None
    elbo: Scalar | None = None
    evidence: MonitorInfo | None = None

    @property
    def missing(self) -> int:
        """Number of bins still needed until the warm-up is over; 0 afterwards."""
        kept = sum(len(part.fresh) for part in self.kept)
        return self.assembly.warm_up - kept if self.warming else 0

    @property
    def current(self) -> LearnerState | MonitoredState:
        """The present state of the learner; `NotFitted` is raised during the warm-up."""
        if self.warming:
            what = f"{self.missing} bins are missing until there is a first readout"
            raise NotFitted(what, "EVKF", "go on with learn_one or partial_fit")
        state = self.state if self.live is None else self.live.state
        assert state is not None
        return state


def assemble(settings: Mapping[str, Any], neurons: int, inputs: int) -> Assembly:
    """Check the parameters of an `EVKF`, and return the `Assembly` made from them.

    Raise `InputError` if a parameter is invalid or does not match the numbers of neurons or inputs.

    Args:
        settings: Parameters of the constructor of `evkf.EVKF`, by name.
        neurons: Number of neurons.
        inputs: Length of the input vector of a bin; 0 without inputs.

    Example:
        >>> settings = dict(latents=2, likelihood="poisson", dynamics="mlp", bin_width=0.01, seed=0)
        >>> assemble(settings | {"learning": Learning(hidden=8)}, neurons=20, inputs=0).warm_up
        400
    """
    settings = dict(settings)
    latents, likelihood, dynamics = (settings[k] for k in ("latents", "likelihood", "dynamics"))
    learning = settings["learning"]
    if not isinstance(learning, Learning):
        raise InputError(f"learning = {learning!r}", "learning", "pass evkf.Learning(...)")
    check_whole(latents, 1, "latents")
    check_whole(settings["seed"], 0, "seed")
    check_whole(learning.warm_up, latents + 1, "warm_up")
    start_key, key = jax.random.split(jax.random.key(settings["seed"]))

    if isinstance(dynamics, str):
        if dynamics != "mlp":
            raise InputError(f"unknown dynamics {dynamics!r}", "dynamics", "pass 'mlp'")
        dynamics = ResidualMLP(latents, NOISE, start_key, learning.hidden, inputs)
    assert isinstance(dynamics, Dynamics)
    if (dynamics.dim, dynamics.num_inputs) != (latents, inputs):
        raise InputError(
            f"dynamics of {dynamics.dim} latents and {dynamics.num_inputs} inputs for "
            f"latents={latents} and {inputs} inputs",
            "dynamics",
            f"pass latents={dynamics.dim}, and {dynamics.num_inputs} inputs with every bin",
        )
    found = isinstance(likelihood, str)
    if found:
        check_choice(likelihood, KINDS, "likelihood")
        if latents > neurons:
            raise InputError(f"{latents} latents of {neurons} neurons", "latents", "pass fewer")
        zero = np.zeros((neurons, latents))
        likelihood = KINDS[likelihood](zero, bin_width=settings["bin_width"])
    assert isinstance(likelihood, Likelihood)

    parts = learning.parts
    if parts is None:
        parts = PARTS if found else ("dynamics", "noise", "prior")
        if not isinstance(dynamics.family, GaussianFamily):
            parts = [part for part in parts if part != "prior"]
    if isinstance(parts, str):
        raise InputError(f"parts = {parts!r}", "parts", f"pass a list, such as [{parts!r}]")
    learner = Learner(
        # In gaps without observations beliefs are wide, and a linearisation of the dynamics at the
        # mean of the belief predicts badly.
        VariationalKalmanFilter(rule="moment_matching"),
        learning.loss,
        parts,
        optimiser=adam(learning.rate, warm_up=RISE),
        steps=learning.steps,
        ring=learning.ring,
    )
    monitor = Monitor(learner.filter) if learning.watch else None
    num_bins = learning.warm_up if found else 0
    return Assembly(learner, monitor, Model(dynamics, likelihood), key, settings, num_bins)


def learn_recording(
    assembly: Assembly, trials: Trials, progress: Callable[[int], None] | None = None
) -> FittedState:
    """Learn from a recording, and return everything learned.

    With one pass, the model is learned bin by bin. With several passes, it is learned from windows
    (consecutive bins) of the whole recording.

    Args:
        assembly: Learner, monitor and starting model.
        trials: The recording.
        progress: Function that is called after every pass with the number of passes done.
    """
    learning, num, bins = assembly.settings["learning"], len(trials.fresh), trials[:4]
    passes, monitor = learning.passes, assembly.monitor
    check_whole(passes, 1, "passes")
    if passes == 1:
        state, evidence = assembly.begin(trials), None
        if isinstance(state, MonitoredState):
            assert monitor is not None
            state, trace = scan_monitored(assembly.learner, monitor, state, *bins)
            info, _, evidence = trace
            evidence = jax.tree.map(lambda leaf: leaf[-1], evidence)
        else:
            state, trace = assembly.learner.scan(state, *bins)
            info = trace.info
        jax.block_until_ready(state)
        if progress is not None:
            progress(1)
        return FittedState(assembly, state=state, elbo=info.elbo[-1], evidence=evidence)

    assembly = assembly.after_training()
    start = assembly.begin(trials)
    window = max(min(WINDOW, max(trials.lengths), num // STEPS_OF_A_PASS), 1)
    batch = int(np.clip(num // (STEPS_OF_A_PASS * window), 1, BATCH))
    steps = max(math.ceil(num / (batch * window)), math.ceil(STEPS / passes))
    optimiser = adam(learning.rate, decay=passes * steps, floor=LAST)
    settings = Pretraining(passes, batch, window, steps, optimiser)
    before = learner_state(start)
    after = pretrain(assembly.learner, before, *bins, settings=settings, progress=progress)
    # A stream that follows goes on from the belief at the end of the recording.
    newest = jax.tree.map(lambda leaf: leaf[after.ring.count - 1], after.ring.bins)
    after = after._replace(filter=State(newest.belief), fresh=jnp.asarray(False))
    return FittedState(assembly, state=with_learner_state(start, after))

"""The filter and learner of a live session: bins in, latents out, nothing compiled on the way.

What it computes is what `Learner.scan` computes, bit for bit, given the same bins and told in which
of them it learned.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from evkf.learning import CompiledLearner, Learner, LearnerState
from evkf.model import Model
from evkf.types import Key


class Latent(NamedTuple):
    """What is known after a bin.

    Attributes:
        mean: Of the state.
        cov: Its covariance.
        rate: The expected observation of the next bin.
        elbo: Lower bound on the log evidence of the bin; 0 where nothing was observed.
        status: Of the filter's update, 0 if all is well.
        ahead: Means of the state in the next bins, as many as the engine looks ahead.
        ahead_var: Their variances.
    """

    mean: Float[np.ndarray, " L"]
    cov: Float[np.ndarray, "L L"]
    rate: Float[np.ndarray, " N"]
    elbo: float
    status: int
    ahead: Float[np.ndarray, "H L"]
    ahead_var: Float[np.ndarray, "H L"]


class Learned(NamedTuple):
    """What a turn of learning did.

    Attributes:
        steps: Gradient steps taken since the stream began.
        windows: Where in the ring the windows of the last step began; -1 if none was taken.
        skipped: Whether the step was not finite, so that nothing was changed.
    """

    steps: int
    windows: np.ndarray
    skipped: bool


class Costs(NamedTuple):
    """Seconds that calls take: medians and 99th percentiles."""

    observe: float
    observe_p99: float
    learn: float
    learn_p99: float
    compile: float


class Engine:
    """A learner at work on the bins of a session.

    Args:
        learner: The learner.
        start: The model to start from.
        key: Randomness, for filters and likelihoods that sample.
        horizon: How many bins to look ahead after each, as if their inputs were its own.

    Example:
        >>> import jax
        >>> from evkf.dynamics import ResidualMLP
        >>> from evkf.likelihoods import Poisson
        >>> likelihood = Poisson([[1.0, 0.0], [0.0, 1.0]])
        >>> model = Model(ResidualMLP(2, 0.04, jax.random.key(1)), likelihood)
        >>> engine = Engine(Learner(ring=64), model)
        >>> latent = engine.observe(np.array([1.0, 0.0]))
        >>> latent.mean.shape, latent.rate.shape, engine.bins
        ((2,), (2,), 1)
    """

    def __init__(self, learner: Learner, start: Model, key: Key | None = None, horizon: int = 0):
        begin = time.perf_counter()
        self.learner = learner
        self._live = CompiledLearner(learner, start, key, nowcast=True, horizon=horizon)
        self.num_channels = start.likelihood.num_channels
        self.num_inputs, self.num_latents = start.dynamics.num_inputs, start.family.dim
        self._take_up(self.state)
        self.dtype = np.dtype(self._live.dtype)
        self._nothing = np.zeros(self.num_channels, self.dtype)
        self._unseen = np.zeros(self.num_channels, bool)
        self.compile_s = time.perf_counter() - begin

    def observe(
        self,
        y: np.ndarray,
        mask: np.ndarray | None = None,
        u: np.ndarray | None = None,
        fresh: bool = False,
    ) -> Latent:
        """Filter a bin."""
        result = self._live.read(self._live.observe(y, mask, u, fresh))
        self.bins += 1
        if u is not None:
            self._input = u
        info, nowcast = result.info, result.nowcast
        assert nowcast is not None
        mean, cov, rate = (np.asarray(part) for part in nowcast)
        foretold = self._live.forecast(self._held_input())
        return Latent(mean, cov, rate, float(info.elbo), int(info.status), *foretold)

    def bridge(self, u: np.ndarray | None = None) -> Latent:
        """Pass over a bin that was lost: predict, with the last input, and do not update.

        Args:
            u: Its input, if that is known.
        """
        return self.observe(self._nothing, self._unseen, self._held_input() if u is None else u)

    def _held_input(self) -> np.ndarray | None:
        return self._input if self.num_inputs else None

    @property
    def steps(self) -> int:
        """Gradient steps since the stream began."""
        return self._steps

    @property
    def due(self) -> bool:
        """Whether there is something to learn after this bin."""
        enough = self.bins > self.learner.window or not self.learner.ring
        return enough and self._live.due

    def learn(self) -> Learned:
        """Take the gradient steps that are due, and wait for them."""
        info = self._live.learn()
        windows = np.asarray(info.windows)
        if windows[0] >= 0:
            self._steps += self.learner.steps
        return Learned(self._steps, windows, bool(info.skipped))

    @property
    def state(self) -> Any:
        """Everything known now, as NumPy's arrays. It can be set, to go on from another."""
        return self.snapshot()()

    @state.setter
    def state(self, state: LearnerState) -> None:
        self._live.state = state
        self._take_up(state)

    def _take_up(self, state: LearnerState) -> None:
        ring = state.ring
        self.bins, self._steps = int(ring.count), int(state.steps)
        self._input = np.asarray(ring.bins.u[(int(ring.count) - 1) % len(ring.bins.u)])

    def snapshot(self) -> Callable[[], Any]:
        """Copy everything known now; what is returned gives it, in whichever thread."""
        return self._live.snapshot()

    @property
    def key(self) -> np.ndarray:
        """The randomness that the stream began with."""
        return self.state.key

    def rehearse(self, num: int = 200) -> Costs:
        """Time calls on bins without spikes, and forget them: the state is afterwards as before."""
        before = self.state
        observing, learning = [], []
        for _ in range(max(num, self.learner.window + 2)):
            first = time.perf_counter()
            self.observe(self._nothing, None, self._held_input())
            second = time.perf_counter()
            observing.append(second - first)
            if self.due:
                self.learn()
                learning.append(time.perf_counter() - second)
        self.state = before
        learning = learning or [0.0]
        return Costs(
            float(np.median(observing)),
            float(np.quantile(observing, 0.99)),
            float(np.median(learning)),
            float(np.quantile(learning, 0.99)),
            self.compile_s,
        )

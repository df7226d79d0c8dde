"""What a learner knows, and what it says of its steps."""

from typing import NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int, PyTree

from evkf.dynamics import GaussianDynamics
from evkf.filters import Info, State
from evkf.learning.replay import Ring
from evkf.model import Model
from evkf.parameters import Free, Thawed
from evkf.types import Belief, Count, Key, Scalar


class LearnerState(NamedTuple):
    """Everything a learner knows; a tree of arrays, to be stored and restored as it is."""

    free: Free
    """What was learned: the running average of what the gradient steps gave."""
    raw: Float[Array, " D"]
    """The learned numbers as the last gradient step left them."""
    filter: State
    ring: Ring
    optimiser: PyTree
    gradient: Float[Array, " D"]
    """Gradients gathered since the last step, if there is no replay."""
    thawed: Thawed
    gauge: Float[Array, "L N"]
    """Where the coordinates are held; empty if they are not."""
    doubt: Scalar
    """Log of the factor on the noise's standard deviation that learned dynamics call for."""
    steps: Count
    """Gradient steps tried."""
    fresh: Bool[Array, ""]
    """Whether the next bin begins a trial, whatever else is said of it."""
    key: Array

    @property
    def model(self) -> Model:
        """The model in use: what was learned, with noise that allows for what cannot be known."""
        model = self.free.build()
        if not isinstance(model.dynamics, GaussianDynamics):
            return model
        noise = model.dynamics.noise.widened(self.doubt)
        return eqx.tree_at(lambda m: m.dynamics.noise, model, noise)

    @property
    def bin_key(self) -> Key:
        """Randomness for filtering the next bin."""
        return jax.random.fold_in(jax.random.wrap_key_data(self.key), self.ring.count)


class LearnInfo(NamedTuple):
    """What a learning step can say about itself.

    Attributes:
        loss: The loss before the step, without what depends on the data alone; NaN where none was
            taken.
        grad_norm: Norm of its gradient before clipping.
        skipped: Whether loss or gradient were not finite, so that nothing was changed.
        windows: Where in the ring the replayed windows begin; -1 where none was taken.
    """

    loss: Scalar
    grad_norm: Scalar
    skipped: Bool[Array, ""]
    windows: Int[Array, " num"]


class LearnTrace(NamedTuple):
    """Beliefs and what was said of filtering and learning, time first."""

    belief: Belief
    info: Info
    learned: LearnInfo

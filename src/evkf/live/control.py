"""What closes the loop: the protocol of controllers, and one that steers to a target."""

import importlib
import sys
from collections.abc import Callable
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.live.answers import Estimate
from evkf.model import Model
from evkf.types import Vector


class Controller(Protocol):
    """What closes the loop: called once a bin, after the estimate was published.

    One that has a method `model_changed(model)` is handed the model as it has been learned: that of
    every checkpoint, between two bins that leave time for it.
    """

    def command(self, estimate: Estimate, u: np.ndarray) -> ArrayLike:
        """The stimulation that is wanted now, one number a channel.

        Args:
            estimate: Of the bin, with the forecast in `ahead` if the session looks ahead.
            u: The input of that bin, which the forecast took for those to come.
        """
        ...


class Steer:
    """Drives the state to a target, by what the model foretells of the next bin.

    The stimulation that would bring the next state nearest to the target, among those that cost
    little: it minimises $|x^* - f(x, u)|^2 + r b^2 |u|^2$, where inputs move f by B u, and the
    columns of B are b long on average. The session must look ahead, by a bin or more.

    Args:
        target: The state $x^*$.
        weight: B, (latents, inputs).
        reluctance: r. With 0 the next state is to be at the target; with 1 half of what is missing
            is made up for in a bin, which an estimate with errors is better off with.

    Example:
        >>> from evkf.live.answers import Flags
        >>> ahead = np.array([[0.5, 0.0]]), np.ones((1, 2))
        >>> belief = np.zeros(2), np.eye(2), np.ones(3), -1.5, 0
        >>> estimate = Estimate(7, Flags.NOTHING, *belief, *ahead, 5, 10, 20)
        >>> steer = Steer([1.0, 0.0], [[0.25, 0.0], [0.0, 0.25]], reluctance=0.0)
        >>> steer.command(estimate, np.zeros(2))
        array([2., 0.])
    """

    def __init__(self, target: ArrayLike, weight: ArrayLike, reluctance: float = 1.0):
        self.target, self._reluctance = np.asarray(target, float), reluctance
        self._follows = False
        self._take_up(np.asarray(weight, float))
        latents = len(self.weight)
        if self.target.shape != (latents,):
            what = f"a target of shape {self.target.shape}"
            raise InputError(what, "target", f"pass {latents} numbers, one a latent")

    def _take_up(self, weight: np.ndarray) -> None:
        gram, inputs = weight.T @ weight, weight.shape[1]
        gram = gram + self._reluctance * np.trace(gram) / inputs * np.eye(inputs)
        self.weight, self._gain = weight, np.linalg.pinv(gram) @ weight.T

    @staticmethod
    def of(model: Model, target: ArrayLike, reluctance: float = 1.0) -> "Steer":
        """With B as the model has it, around the target, and has it as it is learned."""
        steer = Steer(target, input_weight(model, target), reluctance)
        steer._follows = True
        return steer

    def model_changed(self, model: Model) -> None:
        """Go by B as a model has it, if this was made of a model."""
        if self._follows:
            self._take_up(input_weight(model, self.target))

    def command(self, estimate: Estimate, u: np.ndarray) -> np.ndarray:
        """The stimulation for the next bin."""
        if not len(estimate.ahead):
            raise InputError("no forecast", "Steer", "let the session look a bin ahead")
        rest = estimate.ahead[0] - self.weight @ u
        return self._gain @ (self.target - rest)


def input_weight(model: Model, at: ArrayLike) -> np.ndarray:
    """How inputs move the state of the next bin, (latents, inputs), near a state.

    Example:
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Poisson
        >>> dynamics = Linear([[0.9]], noise=0.1, input_weight=[[0.5]])
        >>> input_weight(Model(dynamics, Poisson([[1.0]])), [0.0])
        array([[0.5]])
    """
    dynamics = model.dynamics
    if not isinstance(dynamics, GaussianDynamics) or not dynamics.num_inputs:
        remedy = "fit a model with inputs, or pass the weight"
        raise InputError("dynamics that no input moves", "model", remedy)
    return np.asarray(_push(dynamics, jnp.asarray(at, jnp.result_type(float))), float)


@eqx.filter_jit
def _push(dynamics: GaussianDynamics, z: Vector) -> Array:
    """Compiled once for dynamics of a kind: a session has no time to do it again."""
    return jax.jacobian(dynamics.mean, argnums=1)(z, jnp.zeros(dynamics.num_inputs, z.dtype))


def load(path: str) -> Callable[..., Any]:
    """What a name such as "package.module:maker" stands for. The module is run: it is your code.

    Example:
        >>> load("evkf.live.control:Steer").__name__
        'Steer'
    """
    if "" not in sys.path:
        # Modules in the folder that the command was given in.
        sys.path.append("")
    module, _, name = path.partition(":")
    remedy = "write MODULE:NAME of something that can be called, from where it can be imported"
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{path!r} cannot be imported: {error}", "a maker", remedy) from error
    if not callable(found):
        raise InputError(f"{path!r} cannot be called", "a maker", remedy)
    return found

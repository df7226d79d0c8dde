"""What closes the loop: the protocol of controllers, and one that steers to a target."""

import importlib
import sys
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.live.answers import Estimate
from evkf.model import Model


class Controller(Protocol):
    """What closes the loop: called once a bin, after the estimate was published."""

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
    little: it minimises $|x^* - f(x, u)|^2 + r |u|^2$, where inputs move f by B u. The session must
    look ahead, by a bin or more.

    Args:
        target: The state $x^*$.
        weight: B, (latents, inputs).
        reluctance: r.

    Example:
        >>> from evkf.live.answers import Told
        >>> ahead = np.array([[0.5, 0.0]]), np.ones((1, 2))
        >>> belief = np.zeros(2), np.eye(2), np.ones(3), -1.5, 0
        >>> estimate = Estimate(7, Told.NOTHING, *belief, *ahead, 5, 10, 20)
        >>> steer = Steer([1.0, 0.0], [[0.25, 0.0], [0.0, 0.25]], reluctance=0.0)
        >>> steer.command(estimate, np.zeros(2))
        array([2., 0.])
    """

    def __init__(self, target: ArrayLike, weight: ArrayLike, reluctance: float = 0.01):
        self.target, self.weight = np.asarray(target, float), np.asarray(weight, float)
        latents, inputs = self.weight.shape
        if self.target.shape != (latents,):
            what = f"a target of shape {self.target.shape}"
            raise InputError(what, "target", f"pass {latents} numbers, one a latent")
        gram = self.weight.T @ self.weight + reluctance * np.eye(inputs)
        self._gain = np.linalg.pinv(gram) @ self.weight.T

    @staticmethod
    def of(model: Model, target: ArrayLike, reluctance: float = 0.01) -> "Steer":
        """With B as the model has it, around the target."""
        return Steer(target, input_weight(model, target), reluctance)

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
    dtype = jnp.result_type(float)
    z, u = jnp.asarray(at, dtype), jnp.zeros(dynamics.num_inputs, dtype)
    return np.asarray(jax.jacobian(dynamics.mean, argnums=1)(z, u), float)


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

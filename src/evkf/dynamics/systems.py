"""Known dynamical systems, for simulations and tests; inputs $u_t$ add $B u_t$ to the state."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from evkf.dynamics.base import GaussianDynamics, read_input_weight, read_square
from evkf.numerics.checks import read_array, read_positive
from evkf.numerics.covariance import Covariance, as_covariance
from evkf.types import Input, Matrix, Scalar, Vector


class System(GaussianDynamics):
    r"""Dynamics $z_t \sim N(z + g(z) + B u_t, Q)$, where $z = z_{t-1}$ and $g$ is known."""

    input_weight: eqx.AbstractVar[Float[Array, "L U"]]

    @abstractmethod
    def step(self, z: Vector) -> Vector:
        """Return $g(z)$, the change of the state in one bin without inputs and noise."""

    def mean(self, z: Vector, u: Input) -> Vector:
        return z + self.step(z) + self.input_weight @ u

    @property
    def num_inputs(self) -> int:
        return self.input_weight.shape[1]


class VanDerPol(System):
    r"""The Van der Pol oscillator, which has a stable limit cycle in two dimensions.

    Without noise and inputs, the next state $z'$ is
    $z_1' = z_1 + \frac{\Delta}{\tau_1} z_2$,
    $z_2' = z_2 + \frac{\Delta}{\tau_2}(\gamma(1 - z_1^2)z_2 - z_1)$.
    Paper: eq:vdp_generative_model; a misplaced square there is corrected here.

    Args:
        gamma: $\gamma$, strength of the nonlinearity.
        tau: Time constants $\tau_1$ and $\tau_2$ in seconds.
        dt: $\Delta$, the time step of one bin in seconds.
        noise: Q: one variance, one variance for each latent, or a full covariance matrix.
        input_weight: B, (2, inputs); no inputs when left out.

    Example:
        >>> import jax.numpy as jnp
        >>> VanDerPol().mean(jnp.array([1.0, 0.0]), jnp.zeros(0))
        Array([ 1.  , -0.05], dtype=float32)
    """

    gamma: Scalar
    tau: Float[Array, "2"]
    dt: Scalar
    noise: Covariance
    input_weight: Float[Array, "2 U"]

    def __init__(
        self,
        gamma: float = 1.5,
        tau: tuple[float, float] = (0.1, 0.1),
        dt: float = 0.005,
        noise: "ArrayLike | Covariance" = 0.01,
        input_weight: ArrayLike | None = None,
    ):
        self.gamma, self.dt = read_array(gamma, (), "gamma"), read_positive(dt, (), "dt")
        self.tau = read_positive(read_array(tau, (2,), "tau"), (2,), "tau")
        self.noise = as_covariance(noise, 2, "noise")
        self.input_weight = read_input_weight(input_weight, 2)

    def step(self, z: Vector) -> Vector:
        drift = jnp.stack([z[1], self.gamma * (1 - z[0] ** 2) * z[1] - z[0]])
        return self.dt / self.tau * drift


class ChaoticRNN(System):
    r"""A recurrent network of rate neurons, whose activity is chaotic if coupling is strong.

    Without noise and inputs, the next state is
    $z' = z + \frac{\Delta}{\tau}(\gamma W \tanh z - z)$.
    Paper: the system of table:chaotic_rnn. The defaults are those that Campbell et al. 2021
    published.

    Args:
        weight: W, (latents, latents), usually random entries of variance 1 / latents.
        gamma: $\gamma$, strength of the coupling.
        tau: $\tau$, the time constant in seconds.
        dt: $\Delta$, the time step of one bin in seconds.
        noise: Q: one variance, one variance for each latent, or a full covariance matrix.
        input_weight: B, (latents, inputs); no inputs when left out.

    Example:
        >>> import jax.numpy as jnp
        >>> ChaoticRNN(jnp.zeros((2, 2))).mean(jnp.ones(2), jnp.zeros(0))
        Array([0.96, 0.96], dtype=float32)
    """

    weight: Matrix
    gamma: Scalar
    tau: Scalar
    dt: Scalar
    noise: Covariance
    input_weight: Float[Array, "L U"]

    def __init__(
        self,
        weight: ArrayLike,
        gamma: float = 2.5,
        tau: float = 0.025,
        dt: float = 0.001,
        noise: "ArrayLike | Covariance" = 0.01,
        input_weight: ArrayLike | None = None,
    ):
        self.weight = read_square(weight, "weight")
        dim = len(self.weight)
        self.gamma, self.tau = read_array(gamma, (), "gamma"), read_positive(tau, (), "tau")
        self.dt = read_positive(dt, (), "dt")
        self.noise = as_covariance(noise, dim, "noise")
        self.input_weight = read_input_weight(input_weight, dim)

    def step(self, z: Vector) -> Vector:
        drift = self.gamma * self.weight @ jnp.tanh(z) - z
        return self.dt / self.tau * drift


class Lorenz(System):
    """The chaotic Lorenz system, with states divided by `scale` so that they are of order one.

    Args:
        sigma: Parameter sigma of the Lorenz equations.
        rho: Parameter rho of the Lorenz equations.
        beta: Parameter beta of the Lorenz equations.
        dt: Time step of one bin.
        scale: Number by which the three coordinates of Lorenz are divided.
        noise: Q: one variance, one variance for each latent, or a full covariance matrix.
        input_weight: B, (3, inputs); no inputs when left out.

    Example:
        >>> import jax.numpy as jnp
        >>> Lorenz().mean(jnp.zeros(3), jnp.zeros(0))
        Array([0., 0., 0.], dtype=float32)
    """

    sigma: Scalar
    rho: Scalar
    beta: Scalar
    dt: Scalar
    scale: Scalar
    noise: Covariance
    input_weight: Float[Array, "3 U"]

    def __init__(
        self,
        sigma: float = 10.0,
        rho: float = 28.0,
        beta: float = 8 / 3,
        dt: float = 0.01,
        scale: float = 10.0,
        noise: "ArrayLike | Covariance" = 1e-4,
        input_weight: ArrayLike | None = None,
    ):
        self.sigma, self.rho = read_array(sigma, (), "sigma"), read_array(rho, (), "rho")
        self.beta, self.dt = read_array(beta, (), "beta"), read_positive(dt, (), "dt")
        self.scale = read_positive(scale, (), "scale")
        self.noise = as_covariance(noise, 3, "noise")
        self.input_weight = read_input_weight(input_weight, 3)

    def step(self, z: Vector) -> Vector:
        x, y, w = z
        drift = jnp.stack(
            [
                self.sigma * (y - x),
                x * (self.rho - self.scale * w) - y,
                self.scale * x * y - self.beta * w,
            ]
        )
        return self.dt * drift


class RingAttractor(System):
    r"""A ring attractor: the state is pulled to a circle, and noise moves it along the circle.

    Every point of the circle is a fixed point. Without noise and inputs, the next state is
    $z' = z + \Delta \kappa (1 - |z|^2 / r^2) z$.

    Args:
        radius: $r$, the radius of the circle.
        pull: $\kappa$, the strength of the pull towards the circle.
        dt: $\Delta$, the time step of one bin.
        noise: Q: one variance, one variance for each latent, or a full covariance matrix.
        input_weight: B, (2, inputs); no inputs when left out.

    Example:
        >>> import jax.numpy as jnp
        >>> RingAttractor().mean(jnp.array([0.0, 1.0]), jnp.zeros(0))
        Array([0., 1.], dtype=float32)
    """

    radius: Scalar
    pull: Scalar
    dt: Scalar
    noise: Covariance
    input_weight: Float[Array, "2 U"]

    def __init__(
        self,
        radius: float = 1.0,
        pull: float = 10.0,
        dt: float = 0.01,
        noise: "ArrayLike | Covariance" = 1e-3,
        input_weight: ArrayLike | None = None,
    ):
        self.radius, self.pull = read_positive(radius, (), "radius"), read_array(pull, (), "pull")
        self.dt = read_positive(dt, (), "dt")
        self.noise = as_covariance(noise, 2, "noise")
        self.input_weight = read_input_weight(input_weight, 2)

    def step(self, z: Vector) -> Vector:
        drift = self.pull * (1 - z @ z / self.radius**2) * z
        return self.dt * drift

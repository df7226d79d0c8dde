"""Online variational filtering and parameter learning with a backward kernel.

Campbell, Shi, Rainforth & Doucet 2021.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.filters.base import Info, evidence_info
from evkf.filters.evkf.filter import VariationalKalmanFilter
from evkf.filters.evkf.predict import MAX_STD, predict
from evkf.filters.peers.kernel_ridge import KernelRidge
from evkf.filters.peers.learned import BinData, LearningFilter, ShallowNetwork, flatten, floor_noise
from evkf.model import Model
from evkf.numerics.checks import check_positive, check_positive_whole, check_whole
from evkf.numerics.linalg import all_finite, cholesky, solve_lower, tree_where
from evkf.types import Belief, Input, Key, Scalar, Status, Vector

Cloud = Float[Array, "S L"]


class BackwardKernel(NamedTuple):
    r"""The backward kernel $k_t(z_{t-1} | z_t)$, in units of the beliefs it joins.

    The mean is $m_{t-1} + s_{t-1} \circ \text{net}((z_t - \bar m_t) / \bar s_t)$ with mean and
    standard deviation of $q_{t-1}$ and of the prediction, the standard deviation a multiple of
    $s_{t-1}$. So the weights of one bin serve the next.
    """

    net: ShallowNetwork
    log_scale: Vector

    def centres(self, now: "BinContext", z: Cloud) -> Cloud:
        """Return the means of the kernel, in units of $q_{t-1}$."""
        return self.net.apply((z - now.mean) / now.std, jax.nn.relu)


class BinContext(NamedTuple):
    """The constants of the bound of one bin.

    Attributes:
        model: The model.
        data: Observation, mask and input.
        mean: Mean of the prediction.
        std: Its standard deviation.
        last_mean: Mean of $q_{t-1}$.
        last_std: Its standard deviation.
        last_root: Cholesky factor of its covariance.
        past: Regression of $V_{t-1}$ and its gradients.
    """

    model: Model
    data: BinData
    mean: Vector
    std: Vector
    last_mean: Vector
    last_std: Vector
    last_root: Float[Array, "L L"]
    past: KernelRidge


class OVSState(NamedTuple):
    """The belief, the regression that summarises the past, and what was learned.

    Attributes:
        belief: $q_t(z_t)$, its covariance diagonal.
        smoothed: The belief about $z_{t-1}$ given all observations up to bin t.
        past: The regression of $V_t$, its gradient and the gradient in the learned numbers on
            $z_t$, in units of the belief.
        kernel: The backward kernel of the last bin.
        model: The model in use.
        optimiser: Moments of the gradient steps on the model.
    """

    belief: Belief
    smoothed: Belief
    past: KernelRidge
    kernel: BackwardKernel
    model: Model
    optimiser: PyTree


class OnlineVariationalSmoother(LearningFilter):
    r"""OVS: $q(z_t)\,k_t(z_{t-1}|z_t)$ by gradient ascent, with a regression for the past.

    In every bin $q_t$, a diagonal Gaussian, starts with the mean of the variational Kalman update
    and the variance of the prediction, and $k_t$ from the last bin. (Published code starts from the
    prediction, which loses the stream where half-learned dynamics jump farther than Adam's steps
    can reach.) Adam maximises $E[\log p(z_t|z_{t-1}) p(y_t|z_t) - \log k_t - \log q_t +
    \log q_{t-1} + V_{t-1}(z_{t-1})]$, where only the gradient of $V_{t-1}$ is needed. Kernel ridge
    regression gives it. Then $V_t$, its gradient and the gradient of the bound in the learned
    numbers are regressed on draws of $z_t$, and the model takes one Adam step along the gradient of
    this bin's share of the bound.

    Densities of $q_t$ and $k_t$ are differentiated through the draws only, which is unbiased and
    free of noise at the optimum. For the regressions draws of $k_t$ come in opposite pairs: with
    single ones the noise of $V$ adds up over bins where observations say little. Quantities that
    are known up to a constant ($V$ and the gradient in the learned numbers) are centred under
    $q_t$, so that `info.elbo` is the growth of the bound, an estimate of $\log p(y_t | y_{<t})$.
    Where nothing is observed $q_t$ is the prediction.

    Args:
        iterations: Gradient steps a bin on $q_t$ and $k_t$.
        num_samples: Draws in each step.
        rate: Their learning rate, in units of the predicted standard deviation; held for half of
            the steps, it then falls to zero, and with it the noise of the draws.
        hidden: Units (ReLU) of the backward kernel's network.
        num_support: Draws that the regressions are fitted to.
        ridge: $\lambda$ of the regressions, beside the mean squared error. (Added to the diagonal
            without the number of draws, 0.01 lets the gradient of $V$ grow without end beyond the
            draws, and the belief with it.)
        model_rate: Learning rate of the model.
        learn: True to learn the model; otherwise the given one is used, and the gradient in the
            learned numbers is zero.
        parts: Parts to learn: "dynamics", "noise", "readout", "observation".
        seed: Seed of the network.

    Example:
        >>> import jax
        >>> from evkf import Model, dynamics, likelihoods, scan_filter, simulate
        >>> model = Model(dynamics.Linear([[0.9]], 0.1), likelihoods.StudentT([[1.0]], scale=0.3))
        >>> _, ys = simulate(model, jax.random.key(0), 5)
        >>> filter = OnlineVariationalSmoother(learn=False)
        >>> state, trace = scan_filter(filter, model, ys, key=jax.random.key(1))
        >>> trace.belief.mean.shape, bool(state.smoothed.cov[0, 0] > 0)
        ((5, 1), True)
    """

    iterations: int = eqx.field(default=500, static=True)
    num_samples: int = eqx.field(default=10, static=True)
    rate: float = eqx.field(default=1e-2, static=True)
    hidden: int = eqx.field(default=100, static=True)
    num_support: int = eqx.field(default=250, static=True)
    ridge: float = eqx.field(default=1e-2, static=True)
    model_rate: float = eqx.field(default=3e-3, static=True)
    learn: bool = eqx.field(default=True, static=True)
    parts: tuple[str, ...] = eqx.field(default=("dynamics", "noise"), static=True, converter=tuple)
    seed: int = eqx.field(default=0, static=True)

    def __check_init__(self):
        check_positive_whole(
            iterations=self.iterations, num_samples=self.num_samples, hidden=self.hidden
        )
        check_whole(self.num_support, 4, "num_support")
        if self.num_support % 2:
            what = f"num_support = {self.num_support}"
            raise InputError(what, "num_support", "pass an even number, 4 or more")
        check_positive(rate=self.rate, ridge=self.ridge, model_rate=self.model_rate)

    def init(self, model: Model) -> OVSState:
        if not isinstance(model.dynamics, GaussianDynamics):
            raise InputError(
                f"{type(model.dynamics).__name__} over {type(model.family).__name__} states",
                "OnlineVariationalSmoother",
                "use additive Gaussian noise (GaussianDynamics)",
            )
        self._check_parts(model)
        dim, dtype = model.family.dim, jax.tree.leaves(model.prior)[0].dtype
        net = ShallowNetwork.begin(jax.random.key(self.seed), dim, self.hidden, dim, dtype)
        vector, _ = flatten(model, self.parts)
        past = KernelRidge.zero(self.num_support, dim, 1 + dim + len(vector), dtype)
        kernel = BackwardKernel(net, jnp.zeros(dim, dtype))
        optimiser = optax.adam(self.model_rate).init(vector)
        return OVSState(model.prior, model.prior, past, kernel, model, optimiser)

    def restart(self, model: Model, state: OVSState) -> OVSState:
        """Return to the prior, without a past; what was learned stays."""
        return self.init(model)._replace(
            kernel=state.kernel, model=state.model, optimiser=state.optimiser
        )

    def _filter_bin(
        self, model: Model, state: OVSState, data: BinData, key: Key
    ) -> tuple[OVSState, Info]:
        """Fit $q_t$ and $k_t$, then the regressions, then the model."""
        family, seen = model.family, jnp.any(data.mask)
        fit_key, draw_key, predict_key, start_key = jax.random.split(key, 4)
        prediction = predict(
            model, state.belief, data.u, predict_key, "cubature", 2, correct=True, max_std=MAX_STD
        )
        past = state.past
        if not self.learn:  # the gradient in the learned numbers is not needed
            past = past._replace(coefficients=past.coefficients[:, : 1 + family.dim])
        now = BinContext(
            model,
            data,
            family.mean(prediction.belief),
            jnp.sqrt(family.var(prediction.belief)),
            family.mean(state.belief),
            jnp.sqrt(family.var(state.belief)),
            cholesky(family.cov(state.belief)),
            past,
        )
        first, _ = VariationalKalmanFilter().update(model, prediction, data.y, data.mask, start_key)
        start = (family.mean(first.belief) - now.mean) / now.std
        shift, log_scale, kernel = self._optimise(now, start, state.kernel, seen, fit_key)
        mean, std = now.mean + now.std * shift, now.std * jnp.exp(log_scale)
        past, smoothed, elbo, gradient = self._summarise(now, mean, std, kernel, draw_key)
        sound = all_finite(mean, std, elbo, gradient, *jax.tree.leaves((past, kernel, smoothed)))

        mean, std = tree_where(sound, (mean, std), (now.mean, now.std))
        belief = family.from_moments(mean, jnp.diag(std**2))
        nothing = past._replace(coefficients=jnp.zeros_like(past.coefficients))
        past, kernel, smoothed = tree_where(
            sound, (past, kernel, smoothed), (nothing, state.kernel, state.belief)
        )
        status = jnp.where(sound & ~prediction.failed, 0, int(Status.FELL_BACK)) + jnp.where(
            prediction.capped, int(Status.CAPPED), 0
        )
        optimiser = state.optimiser
        if self.learn:
            model, optimiser = self._learn(model, optimiser, gradient, sound & seen)
        elbo = jnp.where(seen, jnp.where(sound, elbo, jnp.nan), 0)
        info = evidence_info(elbo, status, self.iterations)
        return OVSState(belief, smoothed, past, kernel, model, optimiser), info

    def _optimise(
        self, now: BinContext, start: Vector, kernel: BackwardKernel, seen: Array, key: Key
    ) -> tuple[Vector, Vector, BackwardKernel]:
        """Fit shift and log scale of $q_t$ against the prediction, and $k_t$, with Adam."""
        dim, dtype = len(now.mean), now.mean.dtype
        numbers, unravel = ravel_pytree((start, jnp.zeros(dim, dtype), kernel))
        moves = jnp.ones_like(numbers).at[: 2 * dim].set(seen)
        noise = jax.random.normal(key, (self.iterations, 2, self.num_samples, dim), dtype)

        def loss(numbers: Array, noise: Array) -> Scalar:
            shift, log_scale, kernel = unravel(numbers)
            z = now.mean + now.std * (shift + jnp.exp(log_scale) * noise[0])
            still, narrow = lax.stop_gradient((shift, log_scale))
            log_q = _log_normal((z - now.mean) / now.std - still, narrow)
            return jnp.mean(log_q - _log_ratio(now, kernel, z, noise[1])[0])

        def body(carry: tuple[Any, ...], noise: Array) -> tuple[Any, ...]:
            numbers, moments = carry
            updates, moments = adam.update(jax.grad(loss)(numbers, noise), moments)
            return (numbers + moves * jnp.asarray(updates), moments), None

        half = self.iterations // 2
        adam = optax.adam(optax.linear_schedule(self.rate, 0.0, self.iterations - half, half))
        (numbers, _), _ = lax.scan(body, (numbers, adam.init(numbers)), noise)
        return unravel(numbers)

    def _summarise(
        self, now: BinContext, mean: Vector, std: Vector, kernel: BackwardKernel, key: Key
    ) -> tuple[KernelRidge, Belief, Scalar, Float[Array, " D"]]:
        """Return the regression for the next bin, the smoothed belief, bound and gradient."""
        keys = jax.random.split(key)
        points, noise = (
            jax.random.normal(k, (self.num_support, len(mean)), mean.dtype) for k in keys
        )
        z, own = mean + std * points, 1 + len(mean)
        vector, build = flatten(now.model, self.parts)

        def bound(z: Vector, noise: Vector) -> tuple[Scalar, tuple[Any, ...]]:
            # Opposite draws of the kernel: what is linear in them cancels.
            both = jnp.broadcast_to(z, (2, len(z)))
            gain, last, value = _log_ratio(now, kernel, both, jnp.stack([noise, -noise]))
            log_q = _log_normal(z - mean, jnp.log(std))
            return jnp.mean(gain) - log_q, (last, jnp.mean(value))

        def joint(vector: Array, z: Vector, last: Cloud) -> Scalar:
            model = build(vector)
            log_p = _log_transition(model, jnp.broadcast_to(z, last.shape), last, now.data.u)
            return jnp.mean(log_p) + model.likelihood.log_prob(z, now.data.y, now.data.mask)

        (total, (last, value)), slope = jax.vmap(jax.value_and_grad(bound, has_aux=True))(z, noise)
        targets = jnp.concatenate([(total + value)[:, None], std * slope], axis=1)
        if self.learn:
            white = (last - now.last_mean) / now.last_std
            old = jnp.mean(jax.vmap(now.past.evaluate)(white), axis=1)[:, own:]
            scores = jax.vmap(jax.grad(joint), (None, 0, 0))(vector, z, last) + old
            targets = jnp.concatenate([targets, scores], axis=1)
        centre = jnp.mean(targets, axis=0)
        centre = centre.at[1:own].set(0)
        past = KernelRidge.fit(points, targets - centre, slice(1, own), self.ridge)
        if not self.learn:
            padded = jnp.pad(past.coefficients, ((0, 0), (0, len(vector))))
            past = past._replace(coefficients=padded)

        # Moments of $z_{t-1}$ under $q_t k_t$.
        white = kernel.centres(now, z)
        mid = jnp.mean(white, axis=0)
        cov = (white - mid).T @ (white - mid) / len(z)
        cov = cov + jnp.diag(jnp.exp(2 * kernel.log_scale))
        cov = cov * now.last_std * now.last_std[:, None]
        smoothed = now.model.family.from_moments(now.last_mean + now.last_std * mid, cov)
        return past, smoothed, centre[0], centre[own:]

    def _learn(
        self, model: Model, moments: PyTree, gradient: Array, moves: Array
    ) -> tuple[Model, PyTree]:
        """Take a gradient step with the model where `moves` is true."""
        vector, build = flatten(model, self.parts)
        updates, new = optax.adam(self.model_rate).update(-gradient, moments)
        learned = floor_noise(build(vector + jnp.asarray(updates)), self.parts)
        return tree_where(moves, (learned, new), (model, moments))


def _log_ratio(
    now: BinContext, kernel: BackwardKernel, z: Cloud, noise: Cloud
) -> tuple[Float[Array, " S"], Cloud, Float[Array, " S"]]:
    r"""Return $\log p(z_t|z_{t-1}) p(y_t|z_t) q_{t-1}(z_{t-1}) / k_t(z_{t-1}|z_t)$.

    A term is added that has no value but the gradient of $V_{t-1}$. Also return the draws of
    $z_{t-1}$, and $V_{t-1}$ there.
    """
    white = kernel.centres(now, z)
    placed = white + jnp.exp(kernel.log_scale) * noise
    last = now.last_mean + now.last_std * placed
    log_k = _log_normal(placed - lax.stop_gradient(white), lax.stop_gradient(kernel.log_scale))
    offset = solve_lower(now.last_root, (last - now.last_mean).T).T
    # The determinant is in units of q, as is that of the kernel.
    log_det = jnp.sum(jnp.log(jnp.diagonal(now.last_root) / now.last_std))
    log_last = -0.5 * jnp.sum(offset**2, axis=1) - log_det
    held = lax.stop_gradient(placed)
    past = now.past.evaluate(held, 1 + z.shape[1])
    tilt = jnp.sum(past[:, 1:] * (placed - held), axis=1)
    log_p = _log_transition(now.model, z, last, now.data.u)
    log_y = jax.vmap(now.model.likelihood.log_prob, (0, None, None))(z, now.data.y, now.data.mask)
    return log_p + log_y - log_k + log_last + tilt, last, past[:, 0]


def _log_normal(shift: Cloud, log_std: Vector) -> Float[Array, " S"]:
    """Return the log density of a centred diagonal Gaussian without the constant."""
    return -0.5 * jnp.sum((shift * jnp.exp(-log_std)) ** 2, axis=-1) - jnp.sum(log_std)


def _log_transition(model: Model, z: Cloud, last: Cloud, u: Input) -> Float[Array, " S"]:
    r"""Return $\log p(z_t | z_{t-1})$ without the constant."""
    dynamics = model.dynamics
    assert isinstance(dynamics, GaussianDynamics)
    moved = jax.vmap(dynamics.mean, (0, None))(last, u)
    white = dynamics.noise.whiten((z - moved).T)
    return -0.5 * jnp.sum(white**2, axis=0) - dynamics.noise.log_det_root()

r"""Online variational smoothing (OVS), which learns the model too.

Campbell, Shi, Rainforth & Doucet 2021. Letters: $q_t(z_t)$ is the belief of bin t, and
$k_t(z_{t-1} | z_t)$ the backward kernel, a conditional Gaussian. $q_t$ times the backward kernels
of all bins approximates the posterior of all latent states so far. $V_t(z_t)$, the value, is the
expected contribution of all bins up to t to the log evidence bound, given $z_t$.
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
    r"""The backward kernel $k_t(z_{t-1} | z_t)$, a Gaussian whose mean is computed by a network.

    The mean is $m_{t-1} + s_{t-1} \circ \text{net}((z_t - \bar m_t) / \bar s_t)$. Here $m_{t-1}$
    and $s_{t-1}$ are mean and standard deviation of $q_{t-1}$; $\bar m_t$ and $\bar s_t$ are those
    of the prediction. The standard deviation of the kernel is $s_{t-1}$ times
    $\exp(\text{log scale})$. Because of these units, the network of one bin is a good start for the
    next bin.

    Attributes:
        net: The network.
        log_scale: Logarithm of the standard deviation in units of $s_{t-1}$.
    """

    net: ShallowNetwork
    log_scale: Vector

    def centres(self, now: "BinContext", z: Cloud) -> Cloud:
        """Return the means of the kernel at several $z_t$: the output of the network.

        The means are relative to the mean of $q_{t-1}$, in units of the standard deviation of
        $q_{t-1}$.
        """
        return self.net.apply((z - now.mean) / now.std, jax.nn.relu)


class BinContext(NamedTuple):
    """Values that stay constant while the belief of one bin is optimised.

    Attributes:
        model: The state-space model.
        data: Observation, mask and input of the bin.
        mean: Mean of the prediction.
        std: Standard deviations of the prediction.
        last_mean: Mean of $q_{t-1}$.
        last_std: Standard deviations of $q_{t-1}$.
        last_root: Cholesky factor of the covariance of $q_{t-1}$.
        past: Regression that predicts $V_{t-1}$ and the gradients of $V_{t-1}$ from $z_{t-1}$.
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
    """The filter state of OVS: the belief, a regression that summarises the past, and the model.

    Attributes:
        belief: The belief $q_t(z_t)$; the covariance is diagonal.
        smoothed: The belief about $z_{t-1}$ given all observations up to bin t.
        past: Regression that predicts three things from $z_t$ (in units of the belief): $V_t$, the
            gradient of $V_t$ in $z_t$, and the gradient of the bound in the learned numbers.
        kernel: The backward kernel of the last bin.
        model: The model learned so far.
        optimiser: Internal state of Adam, the optimiser of the model.
    """

    belief: Belief
    smoothed: Belief
    past: KernelRidge
    kernel: BackwardKernel
    model: Model
    optimiser: PyTree


class OnlineVariationalSmoother(LearningFilter):
    r"""OVS: fits belief $q_t$ and backward kernel $k_t$ by gradient ascent, and learns the model.

    In every bin, $q_t$ (a diagonal Gaussian) starts at the mean of the variational Kalman update
    and the variance of the prediction; $k_t$ starts at the kernel of the last bin. (The published
    code starts $q_t$ at the prediction. It fails where half-learned dynamics predict a jump larger
    than Adam's steps can undo.) Adam then maximises $E[\log p(z_t|z_{t-1}) p(y_t|z_t) - \log k_t -
    \log q_t + \log q_{t-1} + V_{t-1}(z_{t-1})]$, with $z_t \sim q_t$ and $z_{t-1} \sim k_t$. Only
    the gradient of $V_{t-1}$ is needed; kernel ridge regression predicts this gradient. Afterwards
    new regressions on samples of $z_t$ are fitted for $V_t$, the gradient of $V_t$, and the
    gradient of the bound in the learned numbers. The model takes one Adam step along the part of
    the last gradient that this bin contributes.

    The log densities of $q_t$ and $k_t$ are differentiated through the samples only; this gradient
    is unbiased, and free of noise at the optimum. For the regressions, samples of $k_t$ come in
    pairs of opposite deviations from the mean: the noise of single samples would accumulate in $V$
    over bins where observations say little. $V$ and the gradient in the learned numbers matter only
    up to a constant; after every bin their means under $q_t$ are subtracted. `info.elbo` is the
    mean that was subtracted from $V$: the growth of the bound, an estimate of
    $\log p(y_t | y_{<t})$. Where nothing is observed, $q_t$ is the prediction.

    Args:
        iterations: Number of gradient steps on $q_t$ and $k_t$ in each bin.
        num_samples: Number of random samples in each gradient step.
        rate: Learning rate of $q_t$ and $k_t$, in units of the predicted standard deviation. It is
            constant for half of the steps and then falls to zero.
        hidden: Number of hidden units (ReLU) in the network of the backward kernel.
        num_support: Number of samples that the regressions are fitted to; even, at least 4.
        ridge: Penalty $\lambda$ of the regressions, relative to the mean squared error. ($\lambda$
            is multiplied by the number of samples before it is added to the diagonal. Without this
            factor, 0.01 is too small: far from the samples the gradient of $V$ grows without limit,
            and so does the belief.)
        model_rate: Learning rate of the model.
        learn: True to learn the model. If False, the given model is used, and the gradient in the
            learned numbers is zero.
        parts: Parts of the model to learn: "dynamics", "noise", "readout", "observation".
        seed: Random seed of the first weights of the network.

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
        """Return the filter state before the first bin of another trial.

        The belief is the prior, and the regressions are zero. The learned model, its optimiser and
        the backward kernel are kept.
        """
        return self.init(model)._replace(
            kernel=state.kernel, model=state.model, optimiser=state.optimiser
        )

    def _filter_bin(
        self, model: Model, state: OVSState, data: BinData, key: Key
    ) -> tuple[OVSState, Info]:
        """Filter one bin: fit $q_t$ and $k_t$, then the regressions; take a step of the model.

        Return the next filter state and the diagnostics. The model changes only if `learn` is True
        and something was observed.
        """
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
        """Maximise the bound of one bin with Adam; return shift and log scale of $q_t$, and $k_t$.

        The mean of $q_t$ is the predicted mean plus the shift times the predicted standard
        deviation; the standard deviation of $q_t$ is the predicted one times exp(log scale).

        Args:
            now: What stays constant in this bin.
            start: The shift to start from; the log scale starts at zero.
            kernel: The backward kernel to start from.
            seen: True if something was observed; otherwise only the kernel is fitted.
            key: JAX random key.
        """
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
        """Return what the next bin needs: regressions, smoothed belief, bound, and gradient.

        The bound is the growth of the log evidence bound in this bin. The gradient is that of the
        bound in the learned numbers; empty if `learn` is False.
        """
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
        """Return the model and the state of Adam after one Adam step that raises the bound.

        Args:
            model: The model before the step.
            moments: Internal state of Adam before the step.
            gradient: Gradient of the bound in the learned numbers of the model.
            moves: True to take the step; if False, model and Adam are returned unchanged.
        """
        vector, build = flatten(model, self.parts)
        updates, new = optax.adam(self.model_rate).update(-gradient, moments)
        learned = floor_noise(build(vector + jnp.asarray(updates)), self.parts)
        return tree_where(moves, (learned, new), (model, moments))


def _log_ratio(
    now: BinContext, kernel: BackwardKernel, z: Cloud, noise: Cloud
) -> tuple[Float[Array, " S"], Cloud, Float[Array, " S"]]:
    r"""Return log weights, samples of $z_{t-1}$ from the backward kernel, and $V_{t-1}$ there.

    The log weight of a sample is $\log [p(z_t|z_{t-1}) p(y_t|z_t) q_{t-1}(z_{t-1}) /
    k_t(z_{t-1}|z_t)]$, up to a constant. To this a term is added whose value is zero and whose
    gradient is that of $V_{t-1}$.

    Args:
        now: What stays constant in this bin.
        kernel: The backward kernel $k_t$.
        z: Samples of $z_t$.
        noise: Standard normal samples, one for each sample of $z_t$.
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
    """Return the log density at `shift` of a diagonal Gaussian of mean zero, up to a constant."""
    return -0.5 * jnp.sum((shift * jnp.exp(-log_std)) ** 2, axis=-1) - jnp.sum(log_std)


def _log_transition(model: Model, z: Cloud, last: Cloud, u: Input) -> Float[Array, " S"]:
    r"""Return the log transition density $\log p(z_t | z_{t-1})$, up to a constant.

    Args:
        model: The state-space model.
        z: Samples of $z_t$.
        last: Samples of $z_{t-1}$.
        u: Input of this bin.
    """
    dynamics = model.dynamics
    assert isinstance(dynamics, GaussianDynamics)
    moved = jax.vmap(dynamics.mean, (0, None))(last, u)
    white = dynamics.noise.whiten((z - moved).T)
    return -0.5 * jnp.sum(white**2, axis=0) - dynamics.noise.log_det_root()

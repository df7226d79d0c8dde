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
from evkf.filters.base import Filter, Info, evidence_info, read_step
from evkf.filters.evkf.filter import VariationalKalmanFilter
from evkf.filters.evkf.predict import MAX_STD, predict
from evkf.filters.peers.backward import (
    Bin,
    Cloud,
    Kernel,
    centres,
    log_normal,
    log_transition,
    reward,
)
from evkf.filters.peers.learned import (
    bounded,
    check_learned,
    check_parts,
    layers,
    learned_vector,
    visit,
)
from evkf.filters.peers.ridge import Ridge, first_outputs, fit, no_ridge, values
from evkf.model import Model
from evkf.numerics.checks import check_positive, check_positive_whole, check_whole
from evkf.numerics.linalg import all_finite, cholesky, tree_where
from evkf.types import Belief, Input, Key, Mask, Observation, Scalar, Status, Vector


class OVSState(NamedTuple):
    """The belief, the function that sums up the past, and all that was learned.

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
    past: Ridge
    kernel: Kernel
    model: Model
    optimiser: PyTree


class OnlineVariationalSmoother(Filter):
    """OVS: $q(z_t)\\,k_t(z_{t-1}|z_t)$ by gradient ascent, the past summed up by a regression.

    In every bin $q_t$, a diagonal Gaussian, starts with the mean of the variational Kalman update
    and the variance of the prediction, and $k_t$ from the last bin. (Published code starts from the
    prediction; where half-learned dynamics jump farther than Adam's steps reach back, the stream is
    then lost.)
    Adam maximises $E[\\log p(z_t|z_{t-1}) p(y_t|z_t) - \\log k_t - \\log q_t + \\log q_{t-1} +
    V_{t-1}(z_{t-1})]$, where only the gradient of $V_{t-1}$ is needed, and known by kernel ridge
    regression. Then $V_t$, its gradient and the gradient of the bound in the learned numbers are
    regressed on draws of $z_t$, and the model takes one Adam step along the gradient of this bin's
    share of the bound.

    Densities of $q_t$ and $k_t$ are differentiated through the draws only, which is unbiased and
    free of noise at the optimum. For the regressions draws of $k_t$ come in opposite pairs: with
    single ones the noise of $V$ adds up over bins where observations say little. Quantities that
    are known up to a constant ($V$ and the gradient in the learned numbers) are centred under
    $q_t$, so that `info.elbo` is the growth of the bound, an estimate of $\\log p(y_t | y_{<t})$.
    Where nothing is observed $q_t$ is the prediction. While learning, the model in the state is the
    one in use, and the `model` of `step` only tells the sizes.

    Args:
        iterations: Gradient steps a bin on $q_t$ and $k_t$.
        num_samples: Draws in each.
        rate: Their learning rate, in units of the predicted standard deviation; held for half of
            the steps, it then falls to zero, and with it the noise of the draws.
        hidden: Units (ReLU) of the backward kernel's network.
        num_support: Draws that the regressions are fitted to.
        ridge: $\\lambda$ of the regressions, beside the mean squared error. (Added to the diagonal
            without the number of draws, 0.01 lets the gradient of $V$ grow without end beyond the
            draws, and the belief with it.)
        model_rate: Learning rate of the model.
        learn: Whether the model is learned; if not, the one given is used. States of both kinds are
            alike, but without learning the gradient in the learned numbers is not kept up: it is
            zero.
        parts: What is learned of it: "dynamics", "noise", "readout", "observation".
        seed: From which the network is drawn.

    Example:
        >>> import jax
        >>> from evkf.dynamics import Linear
        >>> from evkf.filters import scan_filter
        >>> from evkf.likelihoods import StudentT
        >>> from evkf.model import Model, simulate
        >>> model = Model(Linear([[0.9]], noise=0.1), StudentT([[1.0]], scale=0.3))
        >>> _, ys = simulate(model, jax.random.key(0), 5)
        >>> filter = OnlineVariationalSmoother(learn=False)
        >>> state, trace = scan_filter(filter, model, ys, key=jax.random.key(1))
        >>> trace.belief.mean.shape, bool(state.smoothed.cov[0, 0] > 0)
        ((5, 1), True)
    """

    iterations: int = eqx.field(static=True)
    num_samples: int = eqx.field(static=True)
    rate: float = eqx.field(static=True)
    hidden: int = eqx.field(static=True)
    num_support: int = eqx.field(static=True)
    ridge: float = eqx.field(static=True)
    model_rate: float = eqx.field(static=True)
    learn: bool = eqx.field(static=True)
    parts: tuple[str, ...] = eqx.field(static=True)
    seed: int = eqx.field(static=True)

    def __init__(
        self,
        iterations: int = 500,
        num_samples: int = 10,
        rate: float = 1e-2,
        hidden: int = 100,
        num_support: int = 250,
        ridge: float = 1e-2,
        model_rate: float = 3e-3,
        learn: bool = True,
        parts: tuple[str, ...] = ("dynamics", "noise"),
        seed: int = 0,
    ):
        check_positive_whole(iterations=iterations, num_samples=num_samples, hidden=hidden)
        check_whole(num_support, 4, "num_support")
        if num_support % 2:
            raise InputError(
                f"num_support = {num_support}", "num_support", "pass an even number, 4 or more"
            )
        check_positive(rate=rate, ridge=ridge, model_rate=model_rate)
        self.iterations, self.num_samples, self.rate = iterations, num_samples, rate
        self.hidden, self.num_support, self.ridge = hidden, num_support, ridge
        self.model_rate, self.learn = model_rate, learn
        self.parts, self.seed = check_parts(parts), seed

    def init(self, model: Model) -> OVSState:
        if not isinstance(model.dynamics, GaussianDynamics):
            raise InputError(
                f"{type(model.dynamics).__name__} over {type(model.family).__name__} states",
                "OnlineVariationalSmoother",
                "use additive Gaussian noise (GaussianDynamics)",
            )
        if self.learn:
            check_learned(model, self.parts)
        dim, dtype = model.family.dim, jax.tree.leaves(model.prior)[0].dtype
        net = layers(jax.random.key(self.seed), dim, self.hidden, dim, dtype)
        vector, _ = learned_vector(model, self.parts)
        past = no_ridge(self.num_support, dim, 1 + dim + len(vector), dtype)
        kernel = Kernel(net, jnp.zeros(dim, dtype))
        optimiser = optax.adam(self.model_rate).init(vector)
        return OVSState(model.prior, model.prior, past, kernel, model, optimiser)

    def restart(self, model: Model, state: OVSState) -> OVSState:
        """The belief is the prior again, of which there is no past; what was learned stays."""
        return self.init(model)._replace(
            kernel=state.kernel, model=state.model, optimiser=state.optimiser
        )

    def step(
        self,
        model: Model,
        state: OVSState,
        y: Observation,
        mask: Mask | None = None,
        key: Key | None = None,
        u: Input | None = None,
    ) -> tuple[OVSState, Info]:
        """Fit $q_t$ and $k_t$, then the regressions, then the model."""
        y, mask, key, u = read_step(model, y, mask, key, u)
        model = state.model if self.learn else model
        family, seen = model.family, jnp.any(mask)
        fit_key, draw_key, predict_key, start_key = jax.random.split(key, 4)
        prediction = predict(
            model, state.belief, u, predict_key, "cubature", 2, correct=True, max_std=MAX_STD
        )
        now = Bin(
            model,
            y,
            mask,
            u,
            family.mean(prediction.belief),
            jnp.sqrt(family.var(prediction.belief)),
            family.mean(state.belief),
            jnp.sqrt(family.var(state.belief)),
            cholesky(family.cov(state.belief)),
            state.past if self.learn else first_outputs(state.past, 1 + family.dim),
        )
        first, _ = VariationalKalmanFilter().update(model, prediction, y, mask, start_key)
        start = (family.mean(first.belief) - now.mean) / now.std
        shift, log_scale, kernel = self._optimise(now, start, state.kernel, seen, fit_key)
        mean, std = now.mean + now.std * shift, now.std * jnp.exp(log_scale)
        past, smoothed, elbo, gradient = self._sum_up(now, mean, std, kernel, draw_key)
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
            model = visit(model, belief, seen & (status == 0))
        elbo = jnp.where(seen, jnp.where(sound, elbo, jnp.nan), 0)
        info = evidence_info(elbo, status, self.iterations)
        return OVSState(belief, smoothed, past, kernel, model, optimiser), info

    def _optimise(
        self, now: Bin, start: Vector, kernel: Kernel, seen: Array, key: Key
    ) -> tuple[Vector, Vector, Kernel]:
        """Adam on shift and log scale of $q_t$ against the prediction, and on $k_t$."""
        dim, dtype = len(now.mean), now.mean.dtype
        numbers, unravel = ravel_pytree((start, jnp.zeros(dim, dtype), kernel))
        moves = jnp.ones_like(numbers).at[: 2 * dim].set(seen)
        noise = jax.random.normal(key, (self.iterations, 2, self.num_samples, dim), dtype)

        def loss(numbers: Array, noise: Array) -> Scalar:
            shift, log_scale, kernel = unravel(numbers)
            z = now.mean + now.std * (shift + jnp.exp(log_scale) * noise[0])
            still, narrow = lax.stop_gradient((shift, log_scale))
            log_q = log_normal((z - now.mean) / now.std - still, narrow)
            return jnp.mean(log_q - reward(now, kernel, z, noise[1])[0])

        def body(carry: tuple[Any, ...], noise: Array) -> tuple[Any, ...]:
            numbers, moments = carry
            updates, moments = adam.update(jax.grad(loss)(numbers, noise), moments)
            return (numbers + moves * jnp.asarray(updates), moments), None

        half = self.iterations // 2
        adam = optax.adam(optax.linear_schedule(self.rate, 0.0, self.iterations - half, half))
        (numbers, _), _ = lax.scan(body, (numbers, adam.init(numbers)), noise)
        return unravel(numbers)

    def _sum_up(
        self, now: Bin, mean: Vector, std: Vector, kernel: Kernel, key: Key
    ) -> tuple[Ridge, Belief, Scalar, Float[Array, " D"]]:
        """Regress what the next bin needs; also smooth, and give bound and model gradient."""
        keys = jax.random.split(key)
        points, noise = (
            jax.random.normal(k, (self.num_support, len(mean)), mean.dtype) for k in keys
        )
        z, own = mean + std * points, 1 + len(mean)
        vector, build = learned_vector(now.model, self.parts)

        def worth(z: Vector, noise: Vector) -> tuple[Scalar, tuple[Any, ...]]:
            # Opposite draws of the kernel: what is linear in them cancels.
            both = jnp.broadcast_to(z, (2, len(z)))
            gain, last, value = reward(now, kernel, both, jnp.stack([noise, -noise]))
            log_q = log_normal(z - mean, jnp.log(std))
            return jnp.mean(gain) - log_q, (last, jnp.mean(value))

        def joint(vector: Array, z: Vector, last: Cloud) -> Scalar:
            model = build(vector)
            log_p = log_transition(model, jnp.broadcast_to(z, last.shape), last, now.u)
            return jnp.mean(log_p) + model.likelihood.log_prob(z, now.y, now.mask)

        (total, (last, value)), slope = jax.vmap(jax.value_and_grad(worth, has_aux=True))(z, noise)
        targets = jnp.concatenate([(total + value)[:, None], std * slope], axis=1)
        if self.learn:
            white = (last - now.last_mean) / now.last_std
            old = jnp.mean(jax.vmap(values, (None, 0))(now.past, white), axis=1)[:, own:]
            scores = jax.vmap(jax.grad(joint), (None, 0, 0))(vector, z, last) + old
            targets = jnp.concatenate([targets, scores], axis=1)
        centre = jnp.mean(targets, axis=0)
        centre = centre.at[1:own].set(0)
        past = fit(points, targets - centre, slice(1, own), self.ridge)
        if not self.learn:
            known = jnp.pad(past.coefficients, ((0, 0), (0, len(vector))))
            past = past._replace(coefficients=known)
        return past, self._smooth(now, z, kernel), centre[0], centre[own:]

    def _smooth(self, now: Bin, z: Cloud, kernel: Kernel) -> Belief:
        """Moments of $z_{t-1}$ under $q_t k_t$."""
        white = centres(now, kernel, z)
        centre = jnp.mean(white, axis=0)
        cov = (white - centre).T @ (white - centre) / len(z)
        cov = cov + jnp.diag(jnp.exp(2 * kernel.log_scale))
        cov = cov * now.last_std * now.last_std[:, None]
        return now.model.family.from_moments(now.last_mean + now.last_std * centre, cov)

    def _learn(
        self, model: Model, moments: PyTree, gradient: Array, moves: Array
    ) -> tuple[Model, PyTree]:
        """A step along the gradient, if it moves."""
        vector, build = learned_vector(model, self.parts)
        updates, new = optax.adam(self.model_rate).update(-gradient, moments)
        learned = bounded(build(vector + jnp.asarray(updates)), self.parts)
        return tree_where(moves, (learned, new), (model, moments))

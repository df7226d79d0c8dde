r"""Smoothing: the state of a bin given the bins before and after it, offline or with a lag.

The backward pass needs the state of a bin given the state in the next bin,
$z_{t-1} | z_t \sim N(m + G(z_t - \bar m), V)$, a `SmootherKernel`. It is made from the filtering
belief $N(m, P)$ and the filter's own linearisation of the dynamics: with $A$ a root of $P$ and $B$
its image (the tangent map of $A$; under moment matching the deviations of the nodes and their
images),

$$G = AB^\top (BB^\top + Q)^{-1}, \qquad V = (A - GB)(A - GB)^\top + GQG^\top.$$

For linear dynamics this is the smoother of Rauch, Tung and Striebel. The backward pass uses the
variance $P$ also where the filter's prediction leaves it out (`correct=False`). Covariances are
sums of products of roots, and so stay positive definite in float32.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from evkf.dynamics import GaussianDynamics
from evkf.errors import InputError
from evkf.families import DiagonalGaussianFamily, Family, GaussianBelief, GaussianFamily
from evkf.filters import Info, State, VariationalKalmanFilter
from evkf.filters.base import read_fresh, read_observations
from evkf.filters.evkf.filter import check_variational
from evkf.model import Model, read_inputs
from evkf.numerics.checks import check_whole
from evkf.numerics.linalg import cholesky, factorisable, inverse_lower, tree_where
from evkf.types import Belief, Input, Key, Matrix, Vector


class SmootherKernel(NamedTuple):
    r"""The state before a bin given the state in it: $N(m + G(z_t - \bar m), V)$.

    Attributes:
        mean: $m$, the filtering mean before the bin.
        predicted: $\bar m$, the filter's prediction of the bin.
        gain: $G$.
        cov: $V$.
    """

    mean: Vector
    predicted: Vector
    gain: Matrix
    cov: Matrix

    def apply(self, belief: GaussianBelief) -> GaussianBelief:
        """Return the smoothed belief about a bin, given that about the next."""
        mean = self.mean + self.gain @ (belief.mean - self.predicted)
        spread = self.gain @ cholesky(belief.cov)
        return GaussianBelief(mean, factorisable(self.cov + spread @ spread.T))


class Smoothed(NamedTuple):
    r"""Smoothing beliefs of a recording, time first.

    Attributes:
        mean: $E[z_t]$ given all bins of its trial.
        cov: $\text{Cov}(z_t)$.
        info: Diagnostics of the filter steps.
    """

    mean: Float[Array, "T L"]
    cov: Float[Array, "T L L"]
    info: Info


def smooth(
    filter: VariationalKalmanFilter,
    model: Model,
    ys: ArrayLike,
    masks: ArrayLike | None = None,
    us: ArrayLike | None = None,
    fresh: ArrayLike | None = None,
    key: Key | None = None,
) -> Smoothed:
    """Smooth a recording: filter it, then pass backwards.

    Args:
        filter: The filter of the forward pass.
        model: A model with Gaussian beliefs and additive Gaussian noise. Smoothing diagonal
            beliefs inherits the overconfidence of their filter where states are correlated.
        ys: Observations, (bins, channels). NaN is refused unless its entry is masked.
        masks: True where observed, (bins, channels), or (bins,) for whole bins; all when left out.
        us: Inputs, (bins, inputs).
        fresh: True where a bin begins a new trial, (bins,): there the filter starts again from the
            prior, and the backward pass stops. The first bin always begins a trial.
        key: Randomness, for filters and expectations that sample.

    Example:
        >>> import jax
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Poisson
        >>> from evkf.model import simulate
        >>> model = Model(Linear([[0.95]], noise=0.1), Poisson([[1.0], [-1.0]]))
        >>> zs, ys = simulate(model, jax.random.key(0), 50)
        >>> smoothed = smooth(VariationalKalmanFilter(), model, ys)
        >>> smoothed.mean.shape, smoothed.cov.shape
        ((50, 1), (50, 1, 1))
    """
    check_variational(filter)
    _check_model(model)
    observed, seen = read_observations(model, ys, masks)
    num_bins = observed.shape[0]
    inputs = read_inputs(model, us, num_bins)
    return _smooth(
        filter, model, observed, seen, inputs, read_fresh(fresh, num_bins).at[:1].set(True), key
    )


@jax.jit
def _smooth(
    filter: VariationalKalmanFilter,
    model: Model,
    ys: Float[Array, "T N"],
    masks: Bool[Array, "T N"],
    us: Float[Array, "T U"],
    fresh: Bool[Array, " T"],
    key: Key | None,
) -> Smoothed:
    start = filter.init(model)

    def forward(state: State, inputs: tuple[Any, ...]) -> tuple[State, tuple[Any, ...]]:
        y, mask, u, new, t = inputs
        state = tree_where(new, start, state)
        own = None if key is None else jax.random.fold_in(key, t)
        predict_key, update_key = (None, None) if own is None else jax.random.split(own)
        prediction = filter.predict(model, state, predict_key, u)
        kernel = _make_kernel(filter, model, state.belief, prediction.belief, u)
        state, info = filter.update(model, prediction, y, mask, update_key)
        return state, (_moments(model.family, state.belief), kernel, info)

    def backward(
        later: GaussianBelief, inputs: tuple[Any, ...]
    ) -> tuple[GaussianBelief, GaussianBelief]:
        filtered, kernel, last = inputs
        belief = tree_where(last, filtered, later)
        return kernel.apply(belief), belief

    _, (filtered, kernels, info) = lax.scan(
        forward, start, (ys, masks, us, fresh, jnp.arange(len(ys)))
    )
    last = jnp.append(fresh, True)[1:]
    _, belief = lax.scan(
        backward,
        _moments(model.family, start.belief),
        (filtered, kernels, last),
        reverse=True,
    )
    return Smoothed(belief.mean, belief.cov, info)


class LagState(NamedTuple):
    """State of a `FixedLag` smoother between two bins.

    Attributes:
        belief: The last filtering belief.
        begun: True from the second bin on.
        kernels: The kernels of the last bins, oldest first.
    """

    belief: Belief
    begun: Bool[Array, ""]
    kernels: SmootherKernel


class FixedLag(eqx.Module):
    """An online smoother: every bin is reported once, `lag` bins later.

    Time and memory of a push are constant, and it can be compiled or scanned.

    Args:
        lag: Number of bins to wait; 0 gives the filtering belief.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from evkf.dynamics import Linear
        >>> from evkf.likelihoods import Poisson
        >>> model = Model(Linear([[0.95]], noise=0.1), Poisson([[1.0], [-1.0]]))
        >>> filter, smoother = VariationalKalmanFilter(), FixedLag(1)
        >>> step, push = jax.jit(filter.step), jax.jit(smoother.push)
        >>> state, lagged = filter.init(model), smoother.init(model)
        >>> for y in jnp.array([[0.0, 0.0], [9.0, 0.0]]):
        ...     state, info = step(model, state, y)
        ...     lagged, belief = push(filter, model, lagged, state.belief)
        >>> bool(belief.mean[0] > 0.5)
        True
    """

    lag: int = eqx.field(static=True)

    def __check_init__(self):
        check_whole(self.lag, 0, "lag")

    def init(self, model: Model) -> LagState:
        """Return the state before the first bin."""
        _check_model(model)
        zero = jnp.zeros_like(model.family.mean(model.prior))
        identity = jnp.eye(len(zero), dtype=zero.dtype)
        # Before the first bins, kernels that change nothing: the pass ends at the oldest bin.
        still = SmootherKernel(zero, zero, identity, 0 * identity)
        kernels = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.lag, *x.shape)), still)
        return LagState(model.prior, jnp.asarray(False), kernels)

    def push(
        self,
        filter: VariationalKalmanFilter,
        model: Model,
        state: LagState,
        belief: Belief,
        u: Input | None = None,
        fresh: bool | Bool[Array, ""] = False,
        key: Key | None = None,
    ) -> tuple[LagState, GaussianBelief]:
        """Add the filtering belief of a bin, and return the smoothed belief `lag` bins ago.

        Args:
            filter: The filter of the belief.
            model: The model of the filter.
            state: Result of `init` or of the last push.
            belief: The filtering belief of this bin.
            u: The input of this bin.
            fresh: True if this bin begins a new trial.
            key: The key that `filter.step` was given, if its prediction samples.

        Returns:
            The state for the next push, and the belief of the bin `lag` bins ago given all bins of
            its trial up to this one; in the first `lag` bins, that of the oldest bin.
        """
        check_variational(filter)
        predict_key = None if key is None else jax.random.split(key)[0]
        prediction = filter.predict(model, State(state.belief), predict_key, u)
        u = jnp.zeros(0, state.kernels.mean.dtype) if u is None else u
        kernel = _make_kernel(filter, model, state.belief, prediction.belief, u)
        cut = kernel._replace(gain=0 * kernel.gain, cov=model.family.cov(state.belief))
        kernel = tree_where(jnp.asarray(fresh), cut, kernel)
        kernels = jax.tree.map(
            lambda ring, new: jnp.concatenate([ring, new[None]])[1:], state.kernels, kernel
        )
        kernels = tree_where(state.begun, kernels, state.kernels)
        oldest, _ = lax.scan(
            lambda later, kernel: (kernel.apply(later), None),
            _moments(model.family, belief),
            kernels,
            reverse=True,
        )
        return LagState(belief, jnp.asarray(True), kernels), oldest


def _make_kernel(
    filter: VariationalKalmanFilter, model: Model, belief: Belief, prediction: Belief, u: Input
) -> SmootherKernel:
    family, dynamics = model.family, model.dynamics
    assert isinstance(dynamics, GaussianDynamics)
    mean, cov = _moments(family, belief)
    if filter.rule == "moment_matching":
        points, weights = family.nodes(belief)
        images = jax.vmap(dynamics.mean, in_axes=(0, None))(points, u)
        scale = jnp.sqrt(weights)
        root = (points - mean).T * scale
        moved = (images - weights @ images).T * scale
    else:
        root = cholesky(cov)
        _, push = jax.linearize(lambda z: dynamics.mean(z, u), mean)
        moved = jax.vmap(push)(root.T).T
    # One orthogonal step gives factors of the prediction, of its product with the gain and of the
    # rest: with covariances, float32 would lose precise latents beside imprecise ones.
    noise, dim = dynamics.noise.root(), len(mean)
    upper = jnp.linalg.qr(
        jnp.block([[moved.T, root.T], [noise.T, jnp.zeros((noise.shape[1], dim), root.dtype)]]),
        mode="r",
    )
    gain = upper[:dim, dim:].T @ inverse_lower(upper[:dim, :dim].T)
    rest = upper[dim:, dim:]
    # Where the dynamics overflow, the state before stays as filtered.
    sound = jnp.all(jnp.isfinite(gain)) & jnp.isfinite(jnp.sum(moved**2))
    gain, cov = jnp.where(sound, gain, 0), jnp.where(sound, rest.T @ rest, cov)
    return SmootherKernel(mean, family.mean(prediction), gain, cov)


def _moments(family: Family, belief: Belief) -> GaussianBelief:
    return GaussianBelief(family.mean(belief), family.cov(belief))


def _check_model(model: Model) -> None:
    gaussian = isinstance(model.family, GaussianFamily | DiagonalGaussianFamily)
    if not (gaussian and isinstance(model.dynamics, GaussianDynamics)):
        raise InputError(
            f"{type(model.dynamics).__name__} with {type(model.family).__name__} beliefs",
            "model",
            "use Gaussian or DiagonalGaussianFamily beliefs, and GaussianDynamics",
        )

r"""Smoothing: estimate the latent state of a bin from the bins before and after this bin.

`smooth` works offline on a whole recording. `FixedLag` works online and waits for a fixed number of
later bins.

A filter runs forwards, then a backward pass corrects the filter's beliefs. The backward pass needs
the distribution of the latent state $z_{t-1}$ given the latent state $z_t$ one bin later. This
distribution is the `SmootherKernel`

$$z_{t-1} | z_t \sim N(m + G(z_t - \bar m), V).$$

Here $N(m, P)$ is the filtering belief of bin t-1 (mean m, covariance P), and $\bar m$ is the mean
of the filter's prediction of bin t. The gain G and the covariance V are

$$G = AB^\top (BB^\top + Q)^{-1}, \qquad V = (A - GB)(A - GB)^\top + GQG^\top,$$

where Q is the covariance of the noise of the dynamics, A a square root of P ($P = AA^\top$), and B
what the dynamics make of A. If the filter linearises the dynamics at the mean, B is the Jacobian of
the dynamics times A. If the filter uses moment matching, the columns of A are the weighted
deviations of quadrature nodes from the mean, and B are those of the images of the nodes under the
dynamics.

For linear dynamics this is the Rauch–Tung–Striebel smoother. The backward pass uses P even if the
filter's prediction ignores P (`correct=False`). Covariances are computed as sums of products
$XX^\top$, and so stay positive definite in float32.
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
    r"""Latent state of bin t-1, given that of bin t: $N(m + G(z_t - \bar m), V)$.

    Attributes:
        mean: $m$, the filtering mean of bin t-1, (latents,).
        predicted: $\bar m$, the mean of the filter's prediction of bin t, (latents,).
        gain: $G$, (latents, latents).
        cov: $V$, (latents, latents).
    """

    mean: Vector
    predicted: Vector
    gain: Matrix
    cov: Matrix

    def apply(self, belief: GaussianBelief) -> GaussianBelief:
        """Return the smoothed belief of bin t-1, given the smoothed belief of bin t."""
        mean = self.mean + self.gain @ (belief.mean - self.predicted)
        spread = self.gain @ cholesky(belief.cov)
        return GaussianBelief(mean, factorisable(self.cov + spread @ spread.T))


class Smoothed(NamedTuple):
    r"""Smoothed means and covariances of a recording.

    Attributes:
        mean: Mean of the latent state in each bin given all bins of the trial, (bins, latents).
        cov: Covariance of the latent state in each bin given all bins of the trial,
            (bins, latents, latents).
        info: Diagnostics of the filter for each bin.
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
    """Filter a recording forwards, pass backwards, and return smoothed means and covariances.

    Args:
        filter: The filter of the forward pass.
        model: A model that has Gaussian beliefs (full or diagonal covariance) and dynamics with
            additive Gaussian noise. If latent dimensions are correlated, a filter that uses
            diagonal covariances is overconfident, and so are the smoothed covariances.
        ys: Observations, (bins, channels). Raise InputError if an observed value is NaN.
        masks: True where observed, (bins, channels), or (bins,) if all channels of a bin share one
            value; all observed when left out.
        us: Inputs, (bins, inputs); leave out if the model has no inputs.
        fresh: True for the first bin of each trial, (bins,). At these bins the filter restarts
            from the prior, and the backward pass of the previous trial starts one bin before. The
            first bin of the recording always starts a trial. When left out, all bins are one trial.
        key: JAX random key; needed only by filters and expectations that draw samples.

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
    """Internal state of a `FixedLag` smoother: what the smoother keeps between two bins.

    Attributes:
        belief: Filtering belief of the last bin; the prior of the model before the first bin.
        begun: False before the first bin, True afterwards.
        kernels: The last `lag` smoother kernels, oldest first.
    """

    belief: Belief
    begun: Bool[Array, ""]
    kernels: SmootherKernel


class FixedLag(eqx.Module):
    """An online smoother, which returns the smoothed belief of each bin `lag` bins later.

    Call `init` once, then `push` for each bin. Time and memory of `push` do not grow with the
    number of bins. `push` can be compiled by `jax.jit` and used inside `jax.lax.scan`.

    Args:
        lag: Number of bins to wait, 0 or more; 0 gives the filtering belief.

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
        """Return the smoother's internal state before the first bin.

        Args:
            model: The model of the filter, with Gaussian beliefs and additive Gaussian noise.
        """
        _check_model(model)
        zero = jnp.zeros_like(model.family.mean(model.prior))
        identity = jnp.eye(len(zero), dtype=zero.dtype)
        # Until `lag` bins are known, the missing kernels leave a belief unchanged, so the backward
        # pass ends at the first bin.
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
        """Add the filtering belief of this bin, and return the smoothed belief of `lag` bins ago.

        Args:
            filter: The filter that computed the belief.
            model: The model that the filter used.
            state: Internal state from `init` or from the last `push`.
            belief: Filtering belief of this bin.
            u: Input of this bin, (inputs,); leave out if the model has no inputs.
            fresh: True if this bin is the first of a new trial.
            key: The JAX random key that `filter.step` was given, if the filter draws samples for
                predictions.

        Returns:
            The internal state for the next `push`, and the smoothed belief of the bin `lag` bins
            ago. The smoothed belief uses the bins of that bin's trial up to this bin. In the first
            `lag` bins, the smoothed belief of the first bin is returned.
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
    # One QR decomposition gives triangular factors of the predicted covariance, of the gain times
    # this covariance, and of V. Computed from covariances, float32 would lose the small variances
    # of some latent dimensions next to the large variances of others.
    noise, dim = dynamics.noise.root(), len(mean)
    upper = jnp.linalg.qr(
        jnp.block([[moved.T, root.T], [noise.T, jnp.zeros((noise.shape[1], dim), root.dtype)]]),
        mode="r",
    )
    gain = upper[:dim, dim:].T @ inverse_lower(upper[:dim, :dim].T)
    rest = upper[dim:, dim:]
    # If the dynamics overflow, the smoothed belief of bin t-1 is the filtering belief.
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

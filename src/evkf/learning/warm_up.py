"""The warm-up: find a first readout from the first bins, when nothing is known about the recording.

The readout is the weights C and offsets b of a likelihood: observations depend on $Cz + b$, where z
is the latent state. Principal components of smoothed, transformed observations give latent states
of unit variance. The readout is then fitted to the observations at these states. The first readout
defines the coordinates of the latent space, which learning keeps. `evkf.EVKF` and the reproduced
experiments begin with this warm-up.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter1d

from evkf.dynamics import Linear
from evkf.errors import InputError
from evkf.filters.base import read_fresh, read_observations
from evkf.likelihoods import Bernoulli, Gaussian, NegativeBinomial, Poisson
from evkf.model import Model
from evkf.numerics.checks import check_choice
from evkf.numerics.linalg import tree_where
from evkf.types import Scalar

Readout = Poisson | NegativeBinomial | Bernoulli | Gaussian

KINDS = {
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
}

ENOUGH = 2.5
"""Mean number of events (spikes) per channel in a smoothing kernel; sets its width."""

GAUSSIAN_WIDTH = 2.0
"""Standard deviation of the smoothing kernel for continuous signals, in bins."""

STEPS, RATE, RIDGE = 300, 0.05, 1e-2
"""Number of gradient steps, first learning rate, and ridge penalty on weights, for fitting the
readout."""


def warm_up(
    ys: ArrayLike,
    latents: int,
    likelihood: str,
    bin_width: float = 1.0,
    masks: ArrayLike | None = None,
    fresh: ArrayLike | None = None,
) -> Readout:
    """Estimate a readout from the first bins of a recording, and return the likelihood.

    Args:
        ys: Observations, (bins, channels).
        latents: Number of latent dimensions L, at most the number of channels.
        likelihood: "poisson", "negative_binomial", "bernoulli" or "gaussian".
        bin_width: Width of a bin, in seconds as a rule.
        masks: True where observed, (bins, channels); all observed when left out. A channel that was
            never observed gets the mean of all channels, and weights near zero.
        fresh: True where a trial begins, (bins,). Smoothing does not cross the start of a trial.

    Returns:
        The likelihood with fitted C and b, and for "negative_binomial" or "gaussian" with fitted
        dispersion or noise.

    Example:
        >>> import numpy as np
        >>> wave = np.sin(np.arange(200) / 10)[:, None]
        >>> ys = np.random.default_rng(0).poisson(np.exp(wave * np.ones(20)))
        >>> readout = warm_up(ys, 1, "poisson")
        >>> readout.C.shape
        (20, 1)
    """
    check_choice(likelihood, KINDS, "likelihood")
    observed, seen = _read(ys, masks, likelihood)
    num_bins, channels = observed.shape
    if not 1 <= latents <= min(channels, num_bins - 1):
        raise InputError(
            f"{latents} latents from {num_bins} bins of {channels} channels",
            "latents",
            "pass fewer latents, or more bins",
        )
    if not seen.any():
        raise InputError("nothing was observed", "masks", "pass bins with observations")
    marks = np.array(read_fresh(fresh, num_bins))
    marks[0] = True
    if likelihood == "gaussian":
        return _gaussian(observed, seen, marks, latents, bin_width)
    # Width at which a Gaussian kernel holds `ENOUGH` events on average.
    mean = float(_channel_means(observed, seen).mean())
    width = ENOUGH / max(mean, 1e-6) / (2 * np.sqrt(np.pi))
    width = float(np.clip(width, 1.0, max(num_bins / 20, 1.0)))
    smooth = _smooth(observed, seen, marks, width)
    low = 0.1 / num_bins
    smooth = np.clip(smooth, low, 1 - low if likelihood == "bernoulli" else None)
    levels = np.log(smooth) - (np.log1p(-smooth) if likelihood == "bernoulli" else 0)
    offset = levels.mean(axis=0)
    states, weights = _components(levels - offset, latents)
    start = KINDS[likelihood](weights, offset - np.log(bin_width), bin_width=bin_width)
    dtype = jnp.result_type(float)
    data = (jnp.asarray(states, dtype), jnp.asarray(observed, dtype))
    return _fit(start, *data, jnp.asarray(seen))


def fit_readout(
    kind: str,
    states: Float[np.ndarray, "T L"],
    ys: ArrayLike,
    masks: ArrayLike | None = None,
    bin_width: float = 1.0,
) -> Poisson | NegativeBinomial:
    """Fit the readout of counts at given latent states, and return the likelihood.

    Args:
        kind: "poisson" or "negative_binomial".
        states: Latent states, (bins, latents).
        ys: Counts, (bins, channels).
        masks: True where observed, (bins, channels); all observed when left out.
        bin_width: Width of a bin, in seconds as a rule.

    Example:
        >>> import numpy as np
        >>> states = np.random.default_rng(0).normal(size=(2000, 1))
        >>> ys = np.random.default_rng(1).poisson(np.exp(0.5 * states + 1))
        >>> readout = fit_readout("poisson", states, ys)
        >>> bool(abs(readout.C[0, 0] - 0.5) < 0.05 and abs(readout.b[0] - 1) < 0.05)
        True
    """
    if kind not in ("poisson", "negative_binomial"):
        raise InputError(f"a readout of {kind!r}", "kind", "use poisson or negative_binomial")
    observed, seen = _read(ys, masks, kind)
    level = np.log(np.maximum(_channel_means(observed, seen), 0.1 / len(observed)))
    weights = np.zeros((observed.shape[1], states.shape[1]))
    start = KINDS[kind](weights, level - np.log(bin_width), bin_width=bin_width)
    dtype = jnp.result_type(float)
    data = (jnp.asarray(states, dtype), jnp.asarray(observed, dtype), jnp.asarray(seen))
    return _fit(start, *data)  # pyright: ignore[reportReturnType]


def _read(ys: ArrayLike, masks: ArrayLike | None, likelihood: str) -> tuple[np.ndarray, np.ndarray]:
    """Check observations and return the observations, zero where masked, and the masks."""
    if np.ndim(ys) != 2:
        raise InputError(f"observations with {np.ndim(ys)} axes", "ys", "pass (bins, channels)")
    channels = np.shape(ys)[1]
    model = Model(Linear([[0.0]], 1.0), KINDS[likelihood](np.zeros((channels, 1))))
    observed, seen = read_observations(model, ys, masks)
    return np.asarray(observed, float), np.asarray(seen)


def _gaussian(
    ys: np.ndarray, masks: np.ndarray, marks: np.ndarray, latents: int, bin_width: float
) -> Gaussian:
    """Fit the readout of continuous signals by ridge regression, and return the likelihood.

    For the regression, each channel is divided by its standard deviation.
    """
    mean = _channel_means(ys, masks)
    off = np.where(masks, ys - mean, 0)
    spread = np.sqrt(_channel_means(off**2, masks))
    spread = np.where(spread > 0, spread, 1.0)
    scaled = off / spread
    levels = _smooth(scaled, masks, marks, GAUSSIAN_WIDTH)
    states, _ = _components(levels - levels.mean(axis=0), latents)
    design = np.column_stack([states, np.ones(len(states))])
    ridge = RIDGE * np.eye(latents + 1)
    weight, variance = np.zeros((ys.shape[1], latents + 1)), np.ones(ys.shape[1])
    for n in np.flatnonzero(masks.any(axis=0)):
        seen, values = design[masks[:, n]], scaled[masks[:, n], n]
        weight[n] = np.linalg.solve(seen.T @ seen + ridge, seen.T @ values)
        variance[n] = max(float(np.mean((values - seen @ weight[n]) ** 2)), 1e-6)
    C, b = spread[:, None] * weight[:, :-1], mean + spread * weight[:, -1]
    return Gaussian(C, b, bin_width * spread**2 * variance, bin_width)


def _channel_means(ys: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Return the mean of every channel over observed bins.

    A channel that was never observed gets the mean of the means of the other channels.
    """
    count = masks.sum(axis=0)
    means = np.where(masks, ys, 0).sum(axis=0) / np.maximum(count, 1)
    return np.where(count > 0, means, means[count > 0].mean())


def _smooth(ys: np.ndarray, masks: np.ndarray, marks: np.ndarray, width: float) -> np.ndarray:
    """Return observations smoothed in time within trials, (bins, channels).

    Masked entries have no weight. Smoothed values are drawn a little towards the channel's mean.
    """
    # Add the mean with the weight of half a bin, where a kernel counts as 2 sqrt(pi) width
    # bins. Otherwise a silent channel would be zero after smoothing, and zero has no logarithm.
    share = 0.5 / (2 * np.sqrt(np.pi) * width)
    mean, smoothed = _channel_means(ys, masks), np.empty(ys.shape)
    for trial in np.split(np.arange(len(ys)), np.flatnonzero(marks)[1:]):
        held, total = (
            gaussian_filter1d(array[trial], width, axis=0, mode="constant")
            for array in (masks.astype(float), np.where(masks, ys, 0.0))
        )
        smoothed[trial] = (total + share * mean) / (held + share)
    return smoothed


def _components(levels: np.ndarray, latents: int) -> tuple[np.ndarray, np.ndarray]:
    """Return principal components of unit variance and their weights.

    Components are (bins, latents), weights (channels, latents). The sign of each component is such
    that the sum of its weights is not negative.
    """
    left, scale, right = np.linalg.svd(levels, full_matrices=False)
    sign = np.where(right[:latents].sum(axis=1) < 0, -1.0, 1.0)
    root = np.sqrt(len(levels))
    std = np.maximum(scale[:latents] / root, 1e-6)
    return sign * left[:, :latents] * root, (sign * right[:latents].T) * std


@jax.jit
def _fit(
    start: Readout,
    states: Float[Array, "T L"],
    ys: Float[Array, "T N"],
    masks: Bool[Array, "T N"],
) -> Readout:
    """Return the likelihood fitted to observations at given latent states, with a small ridge."""
    optimiser = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))

    def loss(tree: Readout) -> Scalar:
        tree = eqx.tree_at(lambda t: t.bin_width, tree, replace_fn=jax.lax.stop_gradient)
        values = jax.vmap(tree.log_prob)(states, ys, masks)
        return (RIDGE * jnp.sum(tree.C**2) - jnp.sum(values)) / len(ys)

    def body(carry: tuple, _: None) -> tuple:
        tree, memory = carry
        value, grad = jax.value_and_grad(loss)(tree)
        step, new = optimiser.update(grad, memory)
        moved = eqx.apply_updates(tree, step)
        sound = jnp.isfinite(value)
        return (tree_where(sound, moved, tree), tree_where(sound, new, memory)), None

    (tree, _), _ = jax.lax.scan(body, (start, optimiser.init(start)), length=STEPS)  # pyright: ignore[reportArgumentType]
    return tree

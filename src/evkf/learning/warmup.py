"""A first readout from the first bins of a recording about which nothing is known.

Principal components of smoothed, transformed observations give states of unit variance; the readout
is then fitted to what was observed at those states. It fixes the coordinates of the latent space,
which learning keeps.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float
from scipy.ndimage import gaussian_filter1d

from evkf.errors import InputError
from evkf.likelihoods import Bernoulli, Gaussian, NegativeBinomial, Poisson
from evkf.numerics import tree_where
from evkf.types import Scalar

Readout = Poisson | NegativeBinomial | Bernoulli | Gaussian

KINDS = {
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
}

ENOUGH = 2.5
"""Events that a smoothing window should hold on average."""

STEPS, RATE, RIDGE = 300, 0.05, 1e-2
"""Of the fit of the readout: gradient steps, learning rate, and penalty on weights."""


def warm_up(
    ys: Float[np.ndarray, "T N"],
    masks: Bool[np.ndarray, "T N"],
    latents: int,
    likelihood: str,
    bin_width: float = 1.0,
) -> Readout:
    """Find a readout from a stretch of data.

    Args:
        ys: Observations, (bins, channels).
        masks: True where observed.
        latents: Latent dimensions L.
        likelihood: "poisson", "negative_binomial", "bernoulli" or "gaussian".
        bin_width: Width of a bin.

    Returns:
        The likelihood with C, b and, where it has one, its dispersion or noise.

    Example:
        >>> import numpy as np
        >>> wave = np.sin(np.arange(200) / 10)[:, None]
        >>> ys = np.random.default_rng(0).poisson(np.exp(wave * np.ones(20)))
        >>> found = warm_up(ys, np.ones(ys.shape, bool), 1, "poisson")
        >>> found.C.shape
        (20, 1)
    """
    if likelihood not in KINDS:
        raise InputError(
            f"unknown likelihood {likelihood!r}", "likelihood", f"choose one of {tuple(KINDS)}"
        )
    num_bins, channels = ys.shape
    if not 1 <= latents <= min(channels, num_bins - 1):
        raise InputError(
            f"{latents} latents from {num_bins} bins of {channels} channels",
            "latents",
            "pass fewer latents, or more bins",
        )
    smooth = _smooth(ys, masks, likelihood)
    levels = {"bernoulli": _logit, "gaussian": lambda x: x}.get(likelihood, np.log)(smooth)
    offset = levels.mean(axis=0)
    states, weights = _components(levels - offset, latents)
    if likelihood == "gaussian":
        noise = bin_width * _residual_variance(ys, masks, states)
        start = Gaussian(weights, offset, noise, bin_width)
    else:
        start = KINDS[likelihood](weights, offset - np.log(bin_width), bin_width=bin_width)
    dtype = jnp.result_type(float)
    data = (jnp.asarray(states, dtype), jnp.asarray(np.where(masks, ys, 0), dtype))
    return _fit(start, *data, jnp.asarray(masks))


def _smooth(ys: np.ndarray, masks: np.ndarray, likelihood: str) -> np.ndarray:
    """Smoothed in time, weighted by what was observed, and away from impossible values."""
    seen = np.where(masks, ys, 0.0)
    mean = seen.sum(axis=0) / np.maximum(masks.sum(axis=0), 1)
    if likelihood == "gaussian":
        width = 2.0
    else:
        # A Gaussian window of this width holds as many bins as it has events in mind.
        width = ENOUGH / max(float(mean.mean()), 1e-6) / (2 * np.sqrt(np.pi))
    width = float(np.clip(width, 1.0, len(ys) / 20))
    # One pseudo-bin at the channel's mean keeps silence from having no logarithm.
    held = gaussian_filter1d(masks.astype(float), width, axis=0, mode="constant")
    total = gaussian_filter1d(seen, width, axis=0, mode="constant")
    share = 0.5 / (2 * np.sqrt(np.pi) * width)
    smoothed = (total + share * mean) / (held + share)
    if likelihood == "gaussian":
        return smoothed
    low = 0.1 / len(ys)
    return np.clip(smoothed, low, 1 - low if likelihood == "bernoulli" else None)


def _logit(p: np.ndarray) -> np.ndarray:
    return np.log(p) - np.log1p(-p)


def _components(levels: np.ndarray, latents: int) -> tuple[np.ndarray, np.ndarray]:
    """States of unit variance and the weights that read them; the sign makes weights sum up
    positive.
    """
    left, scale, right = np.linalg.svd(levels, full_matrices=False)
    sign = np.where(right[:latents].sum(axis=1) < 0, -1.0, 1.0)
    root = np.sqrt(len(levels))
    std = np.maximum(scale[:latents] / root, 1e-6)
    return sign * left[:, :latents] * root, (sign * right[:latents].T) * std


def _residual_variance(ys: np.ndarray, masks: np.ndarray, states: np.ndarray) -> np.ndarray:
    design = np.column_stack([states, np.ones(len(states))])
    filled = np.where(masks, ys, np.nanmean(np.where(masks, ys, np.nan), axis=0))
    rest = filled - design @ np.linalg.lstsq(design, filled, rcond=None)[0]
    return np.maximum(rest.var(axis=0), 1e-6)


@jax.jit
def _fit(
    start: Readout,
    states: Float[Array, "T L"],
    ys: Float[Array, "T N"],
    masks: Bool[Array, "T N"],
) -> Readout:
    """Maximise the likelihood of the observations at given states, with a small ridge."""
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

r"""How $E_q[\log p(y|z)]$ and its derivatives are computed, for every family and likelihood.

| family | likelihood | way |
|---|---|---|
| the three Gaussians | Gaussian, Poisson with exponential link | closed form |
| the three Gaussians | any other linear readout | quadrature, one dimension a channel |
| any product | Gaussian | closed form, from mean and variance |
| Gamma, both Bernoullis, their products | Poisson with exponential link | closed form, from $A$ |
| Bernoulli up to 10 dimensions | any other | exact sum over its states |
| any other pair | | sampling, the same samples throughout an update |

`way(family, likelihood)` answers with the word of the last column. Sums of likelihoods (`Joint`)
take each part its own way.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.expectations.products import can_tilt, sums_exactly
from evkf.expectations.sites import choose_level, site
from evkf.likelihoods.base import Channels, Site, safe
from evkf.numerics.linalg import cholesky, inverse_lower, pack, total_of_many
from evkf.types import Key, Mask, Matrix, Observation, Scalar, Vector

PACK = 16
"""Most latent dimensions for which products of readout weights are formed once per update."""


class Ell(NamedTuple):
    """Expected log-likelihood with its gradient and expected Hessian in whitened coordinates."""

    value: Scalar
    grad: Vector
    curv: Float[Array, " D"]
    """The lower triangle of the Hessian (see `evkf.numerics.linalg.pack`)."""


class Moments(NamedTuple):
    """Of u; of root and covariance, what an expectation does not use is not computed."""

    mean: Vector
    cov: Matrix
    root: Matrix
    log_det: Scalar
    """Of the covariance."""


def standard(dim: int, dtype: jnp.dtype) -> Moments:
    """The moments of u before the observation."""
    identity = jnp.eye(dim, dtype=dtype)
    return Moments(jnp.zeros(dim, dtype), identity, identity, jnp.zeros((), dtype))


def rooted(mean: Vector, root: Matrix) -> Moments:
    """The moments of a Gaussian with this root of its covariance, a triangular one."""
    log_det = 2 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root))))
    return Moments(mean, root @ root.T, root, log_det)


Evaluate = Callable[[Moments], Ell]
Start = Callable[[], tuple[Ell, Bool[Array, ""]]]


class Whitened(NamedTuple):
    r"""The expected log-likelihood as a function of u with $z = \bar m + \bar S u$.

    `start` is `evaluate` at the prediction, with the first site of an update (see
    `ReadoutLikelihood.each_start`), and whether that is the true one.
    """

    start: Start
    evaluate: Evaluate


def way(family: fam.Family, likelihood: lik.Likelihood) -> str:
    """Name how the expectation is computed: closed form, quadrature, exact sum or sampling.

    Example:
        >>> way(fam.GaussianFamily(2), lik.StudentT([[1.0, 0.0]]))
        'quadrature'
    """
    if isinstance(likelihood, lik.Joint):
        return ", ".join(dict.fromkeys(way(family, part) for part in likelihood.parts))
    if isinstance(likelihood, lik.Gaussian):
        return "closed form"
    if isinstance(likelihood, lik.ReadoutLikelihood) and isinstance(
        family, fam.GaussianFamily | fam.LowRankGaussianFamily | fam.DiagonalGaussianFamily
    ):
        one = jnp.ones_like(likelihood.b)
        return "quadrature" if likelihood.each_site(one, one, one) is None else "closed form"
    if isinstance(likelihood, lik.Poisson) and likelihood.link == "exp" and can_tilt(family):
        return "closed form"
    if sums_exactly(family):
        return "exact sum"
    return "sampling"


def is_conjugate(likelihood: lik.Likelihood) -> bool:
    """Whether a Gaussian belief stays Gaussian under this likelihood."""
    if isinstance(likelihood, lik.Joint):
        return all(is_conjugate(part) for part in likelihood.parts)
    return isinstance(likelihood, lik.Gaussian)


def whitened(
    likelihood: lik.Likelihood,
    mean: Vector,
    root: Matrix,
    y: Observation,
    mask: Mask,
    key: Key,
    num_samples: int,
) -> Whitened:
    r"""Prepare one update of a Gaussian belief: everything that does not change between iterations.

    Args:
        likelihood: The observation model.
        mean: Predicted mean $\bar m$.
        root: Root $\bar S$ of the predicted covariance.
        y: Observation.
        mask: Which channels were observed.
        key: Randomness for the sampled way; the same samples serve the whole update.
        num_samples: How many, in antithetic pairs.
    """
    if isinstance(likelihood, lik.Joint):
        keys = jax.random.split(key, len(likelihood.parts))
        pieces = zip(
            likelihood.parts, likelihood.split(y), likelihood.split(mask), keys, strict=True
        )
        parts = [whitened(p, mean, root, ys, m, k, num_samples) for p, ys, m, k in pieces]
        return Whitened(_total_start([p.start for p in parts]), _total([p.evaluate for p in parts]))
    if isinstance(likelihood, lik.ReadoutLikelihood):
        return _readout(likelihood, mean, root, y, mask)
    if isinstance(likelihood, lik.Gaussian):
        evaluate = _conjugate(likelihood, mean, root, y, mask)
    else:
        evaluate = _sampled(likelihood, mean, root, y, mask, key, num_samples)
    origin = standard(len(mean), mean.dtype)
    return Whitened(lambda: (evaluate(origin), jnp.asarray(True)), evaluate)


def _total_start(parts: list[Start]) -> Start:
    def start() -> tuple[Ell, Bool[Array, ""]]:
        found, exact = zip(*[part() for part in parts], strict=True)
        return jax.tree.map(lambda *terms: sum(terms), *found), jnp.all(jnp.stack(exact))

    return start


def _total(parts: list[Evaluate]) -> Evaluate:
    def evaluate(at: Moments) -> Ell:
        return jax.tree.map(lambda *terms: sum(terms), *[part(at) for part in parts])

    return evaluate


def _conjugate(
    likelihood: lik.Gaussian, mean: Vector, root: Matrix, y: Observation, mask: Mask
) -> Evaluate:
    residual = safe(y, mask, likelihood.b) - likelihood.mean(mean)
    white, loads, constant = likelihood.whiten(residual, likelihood.C @ root, mask)
    curv = pack(-loads.T @ loads)

    def evaluate(at: Moments) -> Ell:
        rest = white - loads @ at.mean
        value = constant - 0.5 * (rest @ rest + jnp.sum((loads @ at.root) ** 2))
        return Ell(value, loads.T @ rest, curv)

    return evaluate


def _readout(
    likelihood: lik.ReadoutLikelihood, mean: Vector, root: Matrix, y: Observation, mask: Mask
) -> Whitened:
    observed = safe(y, mask, likelihood.b)
    centre, rest = likelihood.readout(mean), likelihood.each_rest(observed)
    # Channels come last, which is what small products are fast with.
    loads = jnp.where(mask, root.T @ likelihood.C.T, 0)
    project, gather = _packed(loads) if len(mean) <= PACK else _unpacked(loads)
    before = jnp.sum(loads**2, axis=0)
    level = choose_level(likelihood, before)

    def collect(terms: Site) -> Ell:
        value, slope, curvature = (
            jnp.where(mask, term, 0) for term in terms._replace(value=terms.value + rest)
        )
        return Ell(total_of_many(value), loads @ slope, gather(curvature))

    def start() -> tuple[Ell, Bool[Array, ""]]:
        terms = site(likelihood, centre, before, observed, level)
        first = likelihood.each_start(terms, centre, before, observed)
        same = (first.slope == terms.slope) & (first.curvature == terms.curvature)
        others = jnp.where(same | ~mask, 0, 1).astype(mean.dtype)
        return collect(first), total_of_many(others) == 0

    def evaluate(at: Moments) -> Ell:
        terms = site(likelihood, centre + at.mean @ loads, project(at), observed, level)
        return collect(terms)

    return Whitened(start, evaluate)


Loads = Float[Array, "L N"]
"""What the readouts see of every whitened latent."""
Project = Callable[[Moments], Channels]
Gather = Callable[[Channels], Float[Array, " D"]]


def _unpacked(loads: Loads) -> tuple[Project, Gather]:
    """From moments of u to variances of the readouts; and from curvatures back to the Hessian."""

    def project(at: Moments) -> Channels:
        return jnp.sum((at.root.T @ loads) ** 2, axis=0)

    def gather(curvature: Channels) -> Float[Array, " D"]:
        return pack((loads * curvature) @ loads.T)

    return project, gather


def _packed(loads: Loads) -> tuple[Project, Gather]:
    """The same through the products $l_i l_j$: fewer kernels and flops."""
    rows, columns = np.tril_indices(len(loads))
    squares = loads[rows] * loads[columns]
    twice = jnp.asarray(2 - (rows == columns), loads.dtype)

    def project(at: Moments) -> Channels:
        return jnp.maximum((twice * pack(at.cov)) @ squares, 0)

    def gather(curvature: Channels) -> Float[Array, " D"]:
        return squares @ curvature

    return project, gather


def _sampled(
    likelihood: lik.Likelihood,
    mean: Vector,
    root: Matrix,
    y: Observation,
    mask: Mask,
    key: Key,
    num_samples: int,
) -> Evaluate:
    half = jax.random.normal(key, (num_samples // 2, mean.shape[0]), mean.dtype)
    noise = jnp.concatenate([half, -half])

    def average(u: Vector, cov: Matrix) -> Scalar:
        spread = inverse_lower(cholesky(jnp.linalg.inv(cov))).T
        points = mean + (u + noise @ spread.T) @ root.T
        return jnp.mean(jax.vmap(likelihood.log_prob, (0, None, None))(points, y, mask))

    def evaluate(at: Moments) -> Ell:
        # The derivatives of the sampled average itself, so that its maximum is the fixed point.
        value, (grad, slope) = jax.value_and_grad(average, (0, 1))(at.mean, at.cov)
        return Ell(value, grad, pack(slope + slope.T))

    return evaluate

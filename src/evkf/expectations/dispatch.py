r"""Expected log-likelihoods $E_q[\log p(y|z)]$: how each is computed, and those of Gaussians.

| family | likelihood | method |
|---|---|---|
| the three Gaussians | Gaussian, Poisson with exponential link | closed form |
| the three Gaussians | any other linear readout | quadrature, one dimension a channel |
| any product | Gaussian | closed form, from mean and variance |
| Gamma, both Bernoullis, their products | Poisson with exponential link | closed form, from $A$ |
| Bernoulli up to 10 dimensions | any other | exact sum over its states |
| any other pair | | sampling, the same samples throughout an update |

A linear readout is $Cz + b$; A is the log-partition function of the family.
`expectation_method(family, likelihood)` returns the name of the method. For a `Joint` likelihood,
the method is chosen for each part. `gaussian_ell` prepares the expectation for full Gaussian
beliefs, `evkf.expectations.products.product_ell` for products of univariate families.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evkf import families as fam
from evkf import likelihoods as lik
from evkf.expectations.products import sums_exactly
from evkf.expectations.readout import GAUSSIANS, observe, project
from evkf.likelihoods.base import Site, safe
from evkf.numerics.linalg import cholesky, inverse_lower, pack, total_of_many
from evkf.types import Key, Mask, Matrix, Observation, Scalar, Vector


class Ell(NamedTuple):
    """The expected log-likelihood of a Gaussian belief, and two derivatives.

    The derivatives are in the whitened coordinates u (see `GaussianEll`).
    """

    value: Scalar
    """Expected log-likelihood, in nats."""
    grad: Vector
    """Expected gradient of the log-likelihood."""
    curv: Float[Array, " D"]
    """Lower triangle of the expected Hessian (see `evkf.numerics.linalg.pack`)."""


class Moments(NamedTuple):
    """Mean and covariance of a Gaussian belief about u, the whitened coordinates of `GaussianEll`.

    The covariance is given in several forms, as different expectations need different forms.
    """

    mean: Vector
    cov: Matrix
    root: Matrix
    r"""A triangular matrix R such that $RR^\top$ is the covariance."""
    log_det: Scalar
    """Log-determinant of the covariance."""

    @classmethod
    def standard(cls, dim: int, dtype: jnp.dtype) -> Self:
        """Return the moments of u before the observation: mean zero, covariance I.

        Args:
            dim: Number of latents.
            dtype: Floating-point type.
        """
        identity = jnp.eye(dim, dtype=dtype)
        return cls(jnp.zeros(dim, dtype), identity, identity, jnp.zeros((), dtype))

    @classmethod
    def from_root(cls, mean: Vector, root: Matrix) -> Self:
        r"""Return moments from a mean and a triangular R such that $RR^\top$ is the covariance."""
        log_det = 2 * jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root))))
        return cls(mean, root @ root.T, root, log_det)


Evaluate = Callable[[Moments], Ell]


class GaussianEll(NamedTuple):
    r"""The expected log-likelihood of a bin, as two functions of the belief about u.

    u are whitened coordinates, $z = \bar m + \bar S u$, with $\bar m$ the predicted mean and
    $\bar S$ the Cholesky factor of the predicted covariance; the prediction of u is $N(0, I)$.
    """

    start: Callable[[], tuple[Ell, Bool[Array, ""]]]
    """Return the `Ell` for the first step of an update, from the prediction, and True if it is
    exact. It is not exact where the likelihood shortens a first step that would go too far (see
    `ReadoutLikelihood.each_start`).
    """
    evaluate: Evaluate
    """Return the exact `Ell` for any moments of u."""


def expectation_method(family: fam.Family, likelihood: lik.Likelihood) -> str:
    """Return how the expected log-likelihood is computed, as a string.

    The string is "closed form", "quadrature", "exact sum" or "sampling". For a `Joint` the
    methods of the parts are listed, separated by commas.

    Example:
        >>> expectation_method(fam.GaussianFamily(2), lik.StudentT([[1.0, 0.0]]))
        'quadrature'
    """
    if isinstance(likelihood, lik.Joint):
        names = [expectation_method(family, part) for part in likelihood.parts]
        return ", ".join(dict.fromkeys(names))
    if isinstance(likelihood, lik.Gaussian):
        return "closed form"
    if isinstance(likelihood, lik.ReadoutLikelihood) and isinstance(family, GAUSSIANS):
        one = jnp.ones_like(likelihood.b)
        return "quadrature" if likelihood.each_site(one, one, one) is None else "closed form"
    exponential = isinstance(likelihood, lik.Poisson) and likelihood.link == "exp"
    if exponential and family.has_log_mgf:
        return "closed form"
    return "exact sum" if sums_exactly(family) else "sampling"


def is_conjugate(likelihood: lik.Likelihood) -> bool:
    """Return True if the exact posterior of a Gaussian prediction is Gaussian.

    This is so for `Gaussian` likelihoods, and for a `Joint` of `Gaussian` likelihoods.
    """
    if isinstance(likelihood, lik.Joint):
        return all(is_conjugate(part) for part in likelihood.parts)
    return isinstance(likelihood, lik.Gaussian)


def gaussian_ell(
    likelihood: lik.Likelihood,
    mean: Vector,
    root: Matrix,
    y: Observation,
    mask: Mask,
    key: Key,
    num_samples: int,
) -> GaussianEll:
    r"""Return the expected log-likelihood of a bin, as functions of the belief about u.

    Whatever is the same in all iterations of an update is computed here, once.

    Args:
        likelihood: The observation model.
        mean: Predicted mean $\bar m$.
        root: Cholesky factor $\bar S$ of the predicted covariance.
        y: Observation, (channels,).
        mask: True where observed, (channels,).
        key: JAX random key; the same samples are used in the whole update.
        num_samples: Number of samples, an even number: every sample is used with both signs.
    """
    if isinstance(likelihood, lik.Joint):
        keys = jax.random.split(key, len(likelihood.parts))
        pieces = zip(
            likelihood.parts, likelihood.split(y), likelihood.split(mask), keys, strict=True
        )
        parts = [gaussian_ell(p, mean, root, ys, m, k, num_samples) for p, ys, m, k in pieces]

        def start_all() -> tuple[Ell, Bool[Array, ""]]:
            ells, exact = zip(*[part.start() for part in parts], strict=True)
            return jax.tree.map(lambda *terms: sum(terms), *ells), jnp.all(jnp.stack(exact))

        def evaluate_all(at: Moments) -> Ell:
            return jax.tree.map(lambda *terms: sum(terms), *[part.evaluate(at) for part in parts])

        return GaussianEll(start_all, evaluate_all)
    if isinstance(likelihood, lik.ReadoutLikelihood):
        return _through_readout(likelihood, mean, root, y, mask)
    if isinstance(likelihood, lik.Gaussian):
        evaluate = _conjugate(likelihood, mean, root, y, mask)
    else:
        evaluate = _sampled(likelihood, mean, root, y, mask, key, num_samples)
    origin = Moments.standard(len(mean), mean.dtype)
    return GaussianEll(lambda: (evaluate(origin), jnp.asarray(True)), evaluate)


def _through_readout(
    likelihood: lik.ReadoutLikelihood, mean: Vector, root: Matrix, y: Observation, mask: Mask
) -> GaussianEll:
    centre, loads = likelihood.readout(mean), jnp.where(mask, root.T @ likelihood.C.T, 0)
    readout, before = project(loads), jnp.sum(loads**2, axis=0)
    observed = observe(likelihood, y, mask, before)

    def collect(site: Site) -> Ell:
        curv = readout.hessian(site.curvature)
        return Ell(total_of_many(site.value), loads @ site.slope, curv)

    def start() -> tuple[Ell, Bool[Array, ""]]:
        site, exact = observed.start(centre, before)
        return collect(site), total_of_many(jnp.where(exact, 0, 1).astype(mean.dtype)) == 0

    def evaluate(at: Moments) -> Ell:
        return collect(observed.expect(centre + at.mean @ loads, readout.var(at.cov, at.root)))

    return GaussianEll(start, evaluate)


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
        # Differentiate the sampled average itself: the fixed point of the update is then the
        # maximum of the sampled bound.
        value, (grad, slope) = jax.value_and_grad(average, (0, 1))(at.mean, at.cov)
        return Ell(value, grad, pack(slope + slope.T))

    return evaluate

"""Exponential families for the latent state.

Every one is a `Family`: natural and mean parameters, log-partition, density, entropy, divergence,
samples and deterministic nodes, each accurate to rounding over the family's whole range.

| class | state | parameters per dimension | variance correction |
|---|---|---|---|
| `Gaussian` | real, correlated | mean and covariance | yes |
| `LowRankGaussian` | real, many, correlated | mean, variances and a factor | yes |
| `DiagonalGaussian` | real | $(m/v, -1/2v)$ | yes |
| `Gamma` | positive | $(\\alpha - 1, -\\beta)$ | yes |
| `Beta` | in (0, 1) | $(\\alpha - 1, \\beta - 1)$ | yes |
| `ContinuousBernoulli` | in [0, 1] | $\\lambda$ | no |
| `Bernoulli` | 0 or 1 | $\\lambda$ | no |
| `Product` | blocks of the univariate ones | those of its parts | if all parts' |
"""

from evkf.families.base import Family, Nodes, Univariate
from evkf.families.bernoulli import Bernoulli
from evkf.families.beta import Beta
from evkf.families.continuous_bernoulli import ContinuousBernoulli
from evkf.families.diagonal_gaussian import DiagonalGaussian
from evkf.families.gamma import Gamma
from evkf.families.gaussian import Gaussian, GaussianBelief, GaussianMean, GaussianNat
from evkf.families.low_rank import LowRankBelief, LowRankGaussian
from evkf.families.product import Product

__all__ = [
    "Bernoulli",
    "Beta",
    "ContinuousBernoulli",
    "DiagonalGaussian",
    "Family",
    "Gamma",
    "Gaussian",
    "GaussianBelief",
    "GaussianMean",
    "GaussianNat",
    "LowRankBelief",
    "LowRankGaussian",
    "Nodes",
    "Product",
    "Univariate",
]

from .base import Family, Nodes, Univariate
from .bernoulli import BernoulliFamily
from .beta import BetaFamily
from .continuous_bernoulli import ContinuousBernoulliFamily
from .diagonal_gaussian import DiagonalGaussianFamily
from .gamma import GammaFamily
from .gaussian import GaussianBelief, GaussianFamily, GaussianMean, GaussianNat
from .low_rank import LowRankBelief, LowRankGaussianFamily
from .product import ProductFamily

__all__ = [
    "BernoulliFamily",
    "BetaFamily",
    "ContinuousBernoulliFamily",
    "DiagonalGaussianFamily",
    "Family",
    "GammaFamily",
    "GaussianBelief",
    "GaussianFamily",
    "GaussianMean",
    "GaussianNat",
    "LowRankBelief",
    "LowRankGaussianFamily",
    "Nodes",
    "ProductFamily",
    "Univariate",
]

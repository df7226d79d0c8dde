from .base import Dynamics, GaussianDynamics
from .driven import Driven
from .linear import Linear
from .mlp import Network, ResidualMLP
from .natural import BetaDynamics, GammaDynamics, NaturalDynamics
from .rbf import ResidualRBF
from .systems import ChaoticRNN, Lorenz, RingAttractor, VanDerPol

__all__ = [
    "BetaDynamics",
    "ChaoticRNN",
    "Driven",
    "Dynamics",
    "GammaDynamics",
    "GaussianDynamics",
    "Linear",
    "Lorenz",
    "NaturalDynamics",
    "Network",
    "ResidualMLP",
    "ResidualRBF",
    "RingAttractor",
    "VanDerPol",
]

r"""Models of the latent dynamics $p_\theta(z_t | z_{t-1}, u_t)$."""

from evkf.dynamics.base import Dynamics, GaussianDynamics
from evkf.dynamics.driven import Driven
from evkf.dynamics.linear import Linear
from evkf.dynamics.mlp import Network, ResidualMLP
from evkf.dynamics.natural import BetaDynamics, GammaDynamics, NaturalDynamics
from evkf.dynamics.rbf import ResidualRBF
from evkf.dynamics.systems import ChaoticRNN, Lorenz, RingAttractor, VanDerPol

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

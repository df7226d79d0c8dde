"""Real-time inference and learning of neural dynamics.

The exponential family variational Kalman filter of Dowling, Zhao & Park (ICLR 2023), on JAX: a
stream of binned spikes in, a filtering distribution per bin out.
"""

from evkf import dynamics, families, likelihoods
from evkf.errors import EvkfError, InputError
from evkf.filters import CompiledStep, VariationalKalmanFilter, scan_filter
from evkf.model import Model, simulate
from evkf.types import Status

__version__ = "0.1.0"

__all__ = [
    "CompiledStep",
    "EvkfError",
    "InputError",
    "Model",
    "Status",
    "VariationalKalmanFilter",
    "dynamics",
    "families",
    "likelihoods",
    "scan_filter",
    "simulate",
]

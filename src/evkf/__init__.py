"""Real-time inference and learning of neural dynamics.

The exponential family variational Kalman filter of Dowling, Zhao & Park (ICLR 2023), on JAX: a
stream of binned spikes in; a filtering distribution per bin, forecasts and the dynamics out.
"""

import jax

from evkf import dynamics, families, likelihoods
from evkf.analysis.forecasting import forecast
from evkf.analysis.smoothing import smooth
from evkf.errors import EvkfError, InputError
from evkf.estimators.evkf import EVKF
from evkf.filters import CompiledStep, VariationalKalmanFilter, scan_filter, scan_sessions
from evkf.learning import CompiledLearner, Learner
from evkf.model import Model, simulate
from evkf.numerics.jax_config import low_latency
from evkf.types import Status

__version__ = "1.0.0"

if getattr(jax.config, "jax_default_matmul_precision", None) is None:
    # Accelerators round products to a few digits unless told otherwise; updates would not converge.
    jax.config.update("jax_default_matmul_precision", "highest")

__all__ = [
    "EVKF",
    "CompiledLearner",
    "CompiledStep",
    "EvkfError",
    "InputError",
    "Learner",
    "Model",
    "Status",
    "VariationalKalmanFilter",
    "dynamics",
    "families",
    "forecast",
    "likelihoods",
    "low_latency",
    "scan_filter",
    "scan_sessions",
    "simulate",
    "smooth",
]

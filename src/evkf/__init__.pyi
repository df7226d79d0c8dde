from . import data, dynamics, families, filters, learning, likelihoods
from .analysis.forecasting import forecast
from .analysis.smoothing import smooth
from .errors import EvkfError, InputError
from .estimators.evkf import EVKF
from .estimators.settings import Learning
from .filters.base import scan_filter
from .filters.batched import scan_sessions
from .filters.compiled import CompiledStep
from .filters.evkf.filter import VariationalKalmanFilter
from .learning.compiled import CompiledLearner
from .learning.learner import Learner
from .model import Model, simulate
from .numerics.jax_config import low_latency
from .types import Status

__version__: str

__all__ = [
    "EVKF",
    "CompiledLearner",
    "CompiledStep",
    "EvkfError",
    "InputError",
    "Learner",
    "Learning",
    "Model",
    "Status",
    "VariationalKalmanFilter",
    "data",
    "dynamics",
    "families",
    "filters",
    "forecast",
    "learning",
    "likelihoods",
    "low_latency",
    "scan_filter",
    "scan_sessions",
    "simulate",
    "smooth",
]

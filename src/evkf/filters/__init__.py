"""Online filters: one `step` a bin, or a scan of it over a sequence."""

from evkf.filters.base import Filter, Info, PredictUpdate, State, Trace, scan_filter
from evkf.filters.compiled import CompiledStep
from evkf.filters.ensemble import EnsembleKalman, EnsembleState
from evkf.filters.evkf import VariationalKalmanFilter
from evkf.filters.extended import ExtendedKalman
from evkf.filters.kalman import Kalman
from evkf.filters.ovs import OnlineVariationalSmoother, OVSState
from evkf.filters.particle import ParticleFilter, ParticleState
from evkf.filters.predict import Prediction
from evkf.filters.sessions import scan_sessions
from evkf.filters.svmc import StreamingVMC, SVMCState
from evkf.filters.unscented import UnscentedKalman
from evkf.filters.vjf import VJF, VJFState
from evkf.filters.vjf_direct import DirectVJF, DirectVJFState

__all__ = [
    "VJF",
    "CompiledStep",
    "DirectVJF",
    "DirectVJFState",
    "EnsembleKalman",
    "EnsembleState",
    "ExtendedKalman",
    "Filter",
    "Info",
    "Kalman",
    "OVSState",
    "OnlineVariationalSmoother",
    "ParticleFilter",
    "ParticleState",
    "PredictUpdate",
    "Prediction",
    "SVMCState",
    "State",
    "StreamingVMC",
    "Trace",
    "UnscentedKalman",
    "VJFState",
    "VariationalKalmanFilter",
    "scan_filter",
    "scan_sessions",
]

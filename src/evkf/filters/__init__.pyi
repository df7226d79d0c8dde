from .base import Filter, Info, PredictUpdate, State, Trace, scan_filter
from .batched import scan_sessions
from .compiled import CompiledStep
from .evkf.filter import VariationalKalmanFilter
from .evkf.results import Prediction
from .peers.ensemble import EnsembleKalman, EnsembleState
from .peers.extended import ExtendedKalman
from .peers.kalman import Kalman
from .peers.ovs import OnlineVariationalSmoother, OVSState
from .peers.particle import ParticleFilter, ParticleState
from .peers.svmc import StreamingVMC, SVMCState
from .peers.unscented import UnscentedKalman
from .peers.vjf import VJF, VJFState
from .peers.vjf_direct import DirectVJF, DirectVJFState

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

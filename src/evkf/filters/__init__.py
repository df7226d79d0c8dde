"""Online filters: one `step` a bin, or a scan of it over a sequence."""

from evkf.filters.base import Filter, Info, PredictUpdate, State, Trace, scan_filter
from evkf.filters.batched import scan_sessions
from evkf.filters.compiled import CompiledStep
from evkf.filters.evkf.filter import VariationalKalmanFilter
from evkf.filters.evkf.results import Prediction
from evkf.filters.peers.ensemble import EnsembleKalman, EnsembleState
from evkf.filters.peers.extended import ExtendedKalman
from evkf.filters.peers.kalman import Kalman
from evkf.filters.peers.ovs import OnlineVariationalSmoother, OVSState
from evkf.filters.peers.particle import ParticleFilter, ParticleState
from evkf.filters.peers.svmc import StreamingVMC, SVMCState
from evkf.filters.peers.unscented import UnscentedKalman
from evkf.filters.peers.vjf import VJF, VJFState
from evkf.filters.peers.vjf_direct import DirectVJF, DirectVJFState

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

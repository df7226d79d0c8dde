"""Online filters: one `step` a bin, or a scan of it over a sequence."""

from evkf.filters.base import Filter, Info, State, Trace, scan_filter
from evkf.filters.compiled import CompiledStep
from evkf.filters.evkf import VariationalKalmanFilter
from evkf.filters.ovs import OnlineVariationalSmoother, OVSState
from evkf.filters.predict import Prediction
from evkf.filters.svmc import StreamingVMC, SVMCState

__all__ = [
    "CompiledStep",
    "Filter",
    "Info",
    "OVSState",
    "OnlineVariationalSmoother",
    "Prediction",
    "SVMCState",
    "State",
    "StreamingVMC",
    "Trace",
    "VariationalKalmanFilter",
    "scan_filter",
]

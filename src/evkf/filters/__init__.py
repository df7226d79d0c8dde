"""Online filters: one `step` a bin, or a scan of it over a sequence."""

from evkf.filters.base import Filter, Info, State, Trace, scan_filter
from evkf.filters.compiled import CompiledStep
from evkf.filters.evkf import VariationalKalmanFilter
from evkf.filters.predict import Prediction
from evkf.filters.vjf import VJF, VJFState
from evkf.filters.vjf_direct import DirectVJF, DirectVJFState

__all__ = [
    "VJF",
    "CompiledStep",
    "DirectVJF",
    "DirectVJFState",
    "Filter",
    "Info",
    "Prediction",
    "State",
    "Trace",
    "VJFState",
    "VariationalKalmanFilter",
    "scan_filter",
]

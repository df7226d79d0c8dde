"""Online filters: one `step` a bin, or a scan of it over a sequence."""

from evkf.filters.base import Filter, Info, State, Trace, scan_filter
from evkf.filters.compiled import CompiledStep
from evkf.filters.evkf import VariationalKalmanFilter
from evkf.filters.predict import Prediction

__all__ = [
    "CompiledStep",
    "Filter",
    "Info",
    "Prediction",
    "State",
    "Trace",
    "VariationalKalmanFilter",
    "scan_filter",
]

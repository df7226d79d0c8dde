from .compiled import CompiledLearner, Nowcast, ObserveResult
from .learner import Learner, LearnerState, LearnInfo, LearnTrace, adam
from .losses import LOSSES
from .monitor import (
    Monitor,
    MonitoredState,
    MonitorInfo,
    MonitorState,
    ObservedBin,
    scan_monitored,
    step_monitored,
)
from .pretrain import Pretraining, StateFitting, fit_states, pretrain
from .warm_up import warm_up

__all__ = [
    "LOSSES",
    "CompiledLearner",
    "LearnInfo",
    "LearnTrace",
    "Learner",
    "LearnerState",
    "Monitor",
    "MonitorInfo",
    "MonitorState",
    "MonitoredState",
    "Nowcast",
    "ObserveResult",
    "ObservedBin",
    "Pretraining",
    "StateFitting",
    "adam",
    "fit_states",
    "pretrain",
    "scan_monitored",
    "step_monitored",
    "warm_up",
]

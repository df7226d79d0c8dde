from .compiled import CompiledLearner
from .learner import Learner
from .losses import LOSSES
from .monitor import (
    Monitor,
    MonitorInfo,
    MonitorState,
    Watched,
    scan_watched,
    watch,
)
from .optimiser import adam
from .pretrain import fit_states, pretrain
from .state import LearnerState, LearnInfo, LearnTrace
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
    "Watched",
    "adam",
    "fit_states",
    "pretrain",
    "scan_watched",
    "warm_up",
    "watch",
]

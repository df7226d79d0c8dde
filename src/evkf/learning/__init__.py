"""Learning while streaming: dynamics, noise, readout and initial state."""

from evkf.learning.compiled import CompiledLearner
from evkf.learning.learner import Learner
from evkf.learning.losses import LOSSES
from evkf.learning.monitor import (
    Monitor,
    MonitorInfo,
    MonitorState,
    Watched,
    scan_watched,
    watch,
)
from evkf.learning.optimiser import adam
from evkf.learning.pretrain import fit_states, pretrain
from evkf.learning.state import LearnerState, LearnInfo, LearnTrace
from evkf.learning.warm_up import warm_up

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

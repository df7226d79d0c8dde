"""Learning while streaming: dynamics, noise, readout and initial state."""

from evkf.learning.learner import (
    Learner,
    LearnerState,
    LearnInfo,
    LearnTrace,
    adam,
    freeze,
    thaw,
)
from evkf.learning.losses import LOSSES

__all__ = [
    "LOSSES",
    "LearnInfo",
    "LearnTrace",
    "Learner",
    "LearnerState",
    "adam",
    "freeze",
    "thaw",
]

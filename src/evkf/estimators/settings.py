"""`Learning`, the settings of learning for `EVKF`, for commands and for plan files."""

from collections.abc import Sequence
from dataclasses import dataclass

from sklearn.base import BaseEstimator


@dataclass(frozen=True, repr=False)
class Learning(BaseEstimator):
    """Settings of learning.

    The fields cannot be changed in place. `dataclasses.replace` returns a changed copy, and
    `EVKF.set_params(learning__rate=...)` changes one field of the settings of an `EVKF`.

    Attributes:
        rate: The largest learning rate. In a stream, the rate rises to this value over 30 gradient
            steps and then falls to 0.3 times this value. In several passes, the rate falls to 0.05
            times this value, and a stream that follows keeps that rate.
        loss: "elbo", "kl", "natural" or "natural_literal" (see `evkf.learning.losses`).
        steps: Number of gradient steps after every bin of a stream.
        passes: Number of times that `EVKF.fit` goes through the recording. 1 learns bin by bin, as
            in a stream. Several passes, by `evkf.learning.pretrain`, are better for recordings.
        ring: Number of past bins kept for replay.
        warm_up: Number of first bins from which a readout (weights and offsets of the likelihood)
            is found; `EVKF.fit` uses all bins of a shorter recording.
        hidden: Number of hidden units of the network, or one number for each hidden layer.
        watch: True to compute evidence for the dynamics (`EVKF.evidence_`), which takes two more
            filter steps per bin. When the dynamics change, older bins are then forgotten. With
            several passes, this begins with the stream that follows.
        parts: Parts of the model that are learned, among "dynamics", "noise", "readout",
            "observation" and "prior". None for all parts; if the likelihood was given as an object,
            None for "dynamics", "noise" and "prior". With beliefs other than Gaussian, None leaves
            "prior" out.

    Example:
        >>> Learning(passes=30).get_params()["passes"]
        30
        >>> Learning(rate=3e-3)
        Learning(rate=0.003)
    """

    rate: float = 1e-2
    loss: str = "elbo"
    steps: int = 1
    passes: int = 1
    ring: int = 4096
    warm_up: int = 400
    hidden: int | Sequence[int] = 32
    watch: bool = False
    parts: Sequence[str] | None = None

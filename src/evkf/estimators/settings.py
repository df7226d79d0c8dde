"""`Learning`, the settings of learning: for `EVKF`, the command line and plan files alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from sklearn.base import BaseEstimator


@dataclass(frozen=True, repr=False)
class Learning(BaseEstimator):
    """Settings of learning.

    They cannot be changed in place: `dataclasses.replace` makes others, and so does
    `EVKF.set_params(learning__rate=...)`.

    Attributes:
        rate: The largest learning rate, reached after 30 steps of a stream; it falls to 0.3 of
            that. Several passes end with 0.05 of it, and a stream that follows them keeps that.
        loss: A loss of `evkf.learning.Learner`.
        steps: Gradient steps after every bin of a stream.
        passes: Number of times that `EVKF.fit` goes through the data: once is bin by bin, as in a
            stream; more often by `evkf.learning.pretrain`, which is best for recordings.
        ring: Bins kept for replay.
        warm_up: Bins from which a readout is found; `EVKF.fit` takes fewer if there are no more.
        hidden: Hidden units of the network, or those of several layers.
        watch: True to compute evidence for the dynamics (`EVKF.evidence_`), and to learn anew when
            they change; it takes two more filter steps a bin.
        parts: Parts of the model that are learned, among "dynamics", "noise", "readout",
            "observation" and "prior". None for all, but of a likelihood that is given as an object
            for nothing.

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

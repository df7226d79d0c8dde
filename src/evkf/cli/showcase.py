"""A session on the simulated rig beside the truth: for the demonstration's figure and summary."""

from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from evkf.errors import InputError
from evkf.filters import Info
from evkf.live.checkpoint import load_newest
from evkf.live.plan import CHECKPOINTS, JOURNAL, Plan, parts
from evkf.live.records import Bin, Kind, Step, decode
from evkf.live.rig import rig_model, tape_bins
from evkf.live.segments import Record, read
from evkf.model import simulate
from evkf.recordings import demonstration as demo
from evkf.web.rows import begins, number_of, seen


def session_beside_truth(folder: Path) -> tuple[demo.DemoRecording, demo.DemoEstimates]:
    """What the neurons of a rig were driven by, and what a session made of them.

    Variances are those of the journal; how long single bins took is not known from it.

    Args:
        folder: Of a session on the rig.
    """
    plan = Plan.read(folder)
    made = parts(plan, folder)
    steps, begun, counts = _played(read(folder / JOURNAL))
    found = load_newest(folder / CHECKPOINTS, like=made.learner.init(made.model))
    if found is None or not steps:
        remedy = "let it run for some seconds"
        raise InputError("a session without bins or checkpoints", str(folder), remedy)
    true = rig_model(plan.latents, plan.channels, plan.bin_width, plan.seed)
    tape = tape_bins(plan.bins, plan.channels, plan.bin_width)
    driven = np.asarray(simulate(true, jax.random.key(plan.seed), tape)[0])
    states = driven[[(step.seq - first) % tape for step, first in zip(steps, begun, strict=True)]]
    none = np.zeros(plan.channels, np.uint8)
    seen_counts = np.stack([counts.get(step.seq, none) for step in steps]).astype(np.float32)
    nothing = jnp.full(len(steps), jnp.nan)
    elbo, status = ([getattr(step, name) for step in steps] for name in ("elbo", "status"))
    info = Info(jnp.asarray(elbo), nothing, nothing, nothing, jnp.asarray(status))
    estimate = demo.DemoEstimates(
        mean=np.stack([step.mean for step in steps]),
        cov=np.stack([np.diag(step.var) for step in steps]),
        info=info,
        seconds=np.zeros(0),
        learn_seconds=np.zeros(0),
        compile_s=np.nan,
        early=made.model,
        late=found.state.model,
    )
    return demo.DemoRecording(true, states, seen_counts, plan.bin_width, True), estimate


def _played(records: Iterable[Record]) -> tuple[list[Step], list[int], dict[int, np.ndarray]]:
    """What came of every bin, the bin that its tape began with, and counts by bin."""
    steps: list[Step] = []
    begun: list[int] = []
    counts: dict[int, np.ndarray] = {}
    first = 0
    for record in records:
        if record.kind == Kind.BEGIN:
            # Whoever takes up a session sends what it would have been without a reset.
            first = 0
        elif record.kind == Kind.STEP:
            steps.append(decode(record.kind, record.payload))
            begun.append(first)
        elif record.kind == Kind.BIN:
            frame = Bin.decode(record.payload).frame
            seq = number_of(frame)
            counts[seq] = seen(frame)
            first = seq if begins(frame) else first
    return steps, begun, counts

"""Hold the state of a simulated rig at a target by stimulation: `python examples/closed_loop.py`.

A rig of 100 simulated neurons sends spikes; a session estimates the state that drives them and
learns how it moves; a controller answers every estimate; a guard keeps that to the limits.
"""

import tempfile
from pathlib import Path

import numpy as np

from evkf.latency import low_latency
from evkf.live.answers import Estimate
from evkf.live.control import Controller, input_weight
from evkf.live.engine import Costs, Engine
from evkf.live.machine import become_real_time
from evkf.live.pipes import Callback
from evkf.live.plan import Parts, Plan, fitted
from evkf.live.ports import Due
from evkf.live.run import open_session
from evkf.wiring import open_loop, open_source

TARGET = np.array([1.0, 0.0])
PLAN = Plan(
    "rig",
    bin_width=0.01,
    bins=500,
    num_windows=2,
    window=4,
    horizon=1,
    steer=[1.0, 0.0],
)


class Push:
    """Pushes the state towards the target, half of the way in every bin."""

    def __init__(self, weight: np.ndarray):
        self.inverse = np.linalg.pinv(weight)

    def command(self, estimate: Estimate, u: np.ndarray) -> np.ndarray:
        # Where the state will be in the next bin if nothing changes, and what is missing then.
        missing = TARGET - estimate.ahead[0]
        return u + 0.5 * self.inverse @ missing


class Rest:
    """Does nothing."""

    def command(self, estimate: Estimate, u: np.ndarray) -> np.ndarray:
        return np.zeros_like(u)


def run(folder: Path, made: Parts, engine: Engine, costs: Costs, controller: Controller) -> float:
    """The mean distance of the state from the target, by its estimates."""
    folder.mkdir()
    opened = open_loop(PLAN, folder, made.model, real_time=True)
    assert opened is not None
    rig_end = opened.stimulation
    source, rig = open_source(PLAN, folder, made, Due(), stimulation=rig_end, real_time=True)
    distances: list[float] = []
    sink = Callback(lambda said: distances.append(float(np.linalg.norm(said.mean - TARGET))))
    closed = opened.closed._replace(controller=controller)
    session = open_session(
        folder, PLAN, engine, costs, made.counts, source, [sink], closed=closed, log=print
    )
    session.run()
    for process in (rig, opened.guard):
        if process is not None:
            process.join(10)
    return float(np.mean(distances[100:]))


def main() -> None:
    """Once without stimulation, once with."""
    low_latency()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, made, engine, costs = fitted(PLAN, folder)
        start = engine.state
        if refused := become_real_time():
            print(f"no real-time priority, stimulation will pause now and then: {refused}")
        alone = run(folder / "alone", made, engine, costs, Rest())
        engine.state = start
        push = Push(input_weight(made.model, TARGET))
        steered = run(folder / "steered", made, engine, costs, push)
    print(f"mean distance from the target: {alone:.2f} alone, {steered:.2f} when steered")


if __name__ == "__main__":
    main()

"""A live session with a controller.

A rig of 100 simulated neurons sends spikes; a session estimates the state that drives them and
learns how it moves; a controller answers every estimate and holds the state at a target; a guard
enforces the limits. In the shell, with the ready-made controller: `evkf live --steer 1,0`.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from evkf.cli.wiring import open_loop, open_source
from evkf.live.answers import Estimate
from evkf.live.control import Controller, input_weight
from evkf.live.engine import Costs, Engine
from evkf.live.machine import become_real_time
from evkf.live.pipes import Callback
from evkf.live.plan import Parts, Plan, fitted, parts
from evkf.live.ports import Due
from evkf.live.run import open_session
from evkf.numerics.jax_config import low_latency

# ## The plan
#
# What `evkf live` makes of its options: bins of 10 ms from the simulated rig, every estimate with
# a forecast of one bin, and a stimulator whose two channels push the state.

QUICK = "--quick" in sys.argv
TARGET = np.array([1.0, 0.0])
PLAN = Plan(
    "rig",
    bin_width=0.01,
    bins=250 if QUICK else 800,
    num_windows=2,
    window=4,
    horizon=1,
    steer=[1.0, 0.0],
)

# ## The controller
#
# Anything with a method `command`: called once per bin with the estimate and with what was on, it
# returns a number for every channel of the stimulator. This one asks for what will be missing.


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


# ## A session
#
# The guard and the rig are processes of their own. The session filters, publishes, journals, asks
# the controller, and learns in the time that is left; a sink receives every estimate.


def run(
    folder: Path, made: Parts, engine: Engine, costs: Costs, controller: Controller
) -> np.ndarray:
    """The estimated state in every bin."""
    folder.mkdir()
    opened = open_loop(PLAN, folder, made.model, real_time=True)
    assert opened is not None
    rig_end = opened.stimulation
    source, rig = open_source(PLAN, folder, made, Due(), stimulation=rig_end, real_time=True)
    states: list[np.ndarray] = []
    sink = Callback(lambda said: states.append(np.array(said.mean)))
    closed = opened.closed._replace(controller=controller)
    session = open_session(
        folder, PLAN, engine, costs, made.counts, source, [sink], closed=closed, log=print
    )
    session.run()
    for process in (rig, opened.guard):
        if process is not None:
            process.join(10)
    return np.stack(states)


# ## Once without stimulation, once with


def main() -> None:
    """Run both, and compare."""
    low_latency()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, made, engine, costs = fitted(PLAN, folder, parts(PLAN, folder))
        start = engine.state
        if refused := become_real_time():
            print(f"no real-time priority, stimulation will pause now and then: {refused}")
        alone = run(folder / "alone", made, engine, costs, Rest())
        engine.state = start
        push = Push(input_weight(made.model, TARGET))
        steered = run(folder / "steered", made, engine, costs, push)
    far = [float(np.linalg.norm(path[100:] - TARGET, axis=1).mean()) for path in (alone, steered)]
    print(f"mean distance from the target: {far[0]:.2f} alone, {far[1]:.2f} when steered")
    draw(alone, steered)


def draw(alone: np.ndarray, steered: np.ndarray) -> None:
    """Both paths, over time and in the plane."""
    # Here, so that the processes of guard and rig, which import this file, need not load it.
    import matplotlib.pyplot as plt

    from evkf.plotting.style import ESTIMATE, MUTED, STYLE, TRUTH

    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(9.6, 3.3), layout="constrained")
        axes = figure.subplot_mosaic([["first", "plane"], ["second", "plane"]],
                                     width_ratios=[1.9, 1])  # fmt: skip
        for path, colour, name in ((alone, MUTED, "alone"), (steered, ESTIMATE, "steered")):
            for i, place in enumerate(("first", "second")):
                axes[place].plot(PLAN.bin_width * np.arange(len(path)), path[:, i], color=colour,
                                 lw=1.1, label=name)  # fmt: skip
                axes[place].axhline(TARGET[i], color=TRUTH, lw=0.8, ls=":")
                axes[place].set_ylabel(f"$z_{i + 1}$")
            axes["plane"].plot(*path[100:].T, color=colour, lw=0.9)
        axes["plane"].plot(*TARGET, "o", mfc="none", mec=TRUTH, ms=9, mew=1.6)
        axes["first"].set_title("Estimated state; dotted: the target")
        axes["first"].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
        axes["second"].set_xlabel("time (s)")
        axes["plane"].set(xlabel="$z_1$", ylabel="$z_2$", title="After the first second",
                          aspect="equal")  # fmt: skip
        figure.savefig("closed_loop.png", dpi=110)


if __name__ == "__main__":
    main()

# ![The state alone runs round its cycle; steered it stays at the
# target](../docs/img/closed_loop.png)
#
# Stimulation begins after five sound estimates in a row, and pauses whenever one is not sound:
# now and then on a busy machine without real-time priority, hardly ever on an idle one.
#
# ## Next
#
# - Limits, stimulators of your own, how it stops: [closed loop](../docs/closed_loop.md).
# - Bins from a rig: [rigs](../docs/rig.md), [frames](../docs/live_protocol.md).
# - Promises and evidence: [reliability](../docs/reliability.md).

"""A live session with a controller.

A rig of 100 simulated neurons sends spikes. A session estimates the state behind them and learns
its dynamics. A controller computes a command from every estimate to hold the state at a target. A
guard enforces the limits. The shell has a ready-made controller: `evkf live --steer 1,0`.
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
# `evkf live` makes a plan from its options. This plan has bins of 10 ms from the simulated rig, a
# forecast of one bin with every estimate, and a stimulator whose two channels push the state.

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
# A controller is an object with a method `command`. The session calls it once per bin with the
# estimate and the present output `u`; it returns one number per channel of the stimulator. This
# controller corrects half of the predicted distance to the target.


class Push:
    """Push the state half of the way to the target in every bin."""

    def __init__(self, weight: np.ndarray):
        self.inverse = np.linalg.pinv(weight)

    def command(self, estimate: Estimate, u: np.ndarray) -> np.ndarray:
        # Distance from the predicted state of the next bin to the target, if the output stays.
        missing = TARGET - estimate.ahead[0]
        return u + 0.5 * self.inverse @ missing


class Rest:
    """Command zero."""

    def command(self, estimate: Estimate, u: np.ndarray) -> np.ndarray:
        return np.zeros_like(u)


# ## A session
#
# The guard and the rig run in separate processes. The session filters each bin, publishes and
# journals it, calls the controller, and learns in the remaining time. A sink receives every
# estimate.


def run(
    folder: Path, made: Parts, engine: Engine, costs: Costs, controller: Controller
) -> np.ndarray:
    """Run a session, and return the estimated state of every bin."""
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


# ## One run without stimulation, one run with it


def main() -> None:
    """Run both sessions and compare them."""
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
    """Draw both paths, over time and in the plane."""
    # Imported here, because the processes of guard and rig import this file without drawing.
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

# ![Without stimulation, the state follows its cycle; with it, the state stays at the
# target](../docs/img/closed_loop.png)
#
# Stimulation begins after five sound estimates in a row, and pauses whenever an estimate is not
# sound: sometimes on a busy machine without real-time priority, rarely on an idle machine.
#
# ## Next
#
# - Limits, your own stimulator, ways to stop: [closed loop](../docs/closed_loop.md).
# - Bins from a rig: [rigs](../docs/rig.md), [frames](../docs/live_protocol.md).
# - Promises and evidence: [reliability](../docs/reliability.md).

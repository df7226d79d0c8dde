"""A process behind the web process: it reads checkpoints, and says what was learned.

python -m evkf.web.background FOLDER NUMBER, with the number of an open socket.
"""

import json
import os
import select
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from evkf.dynamics import Dynamics, GaussianDynamics
from evkf.errors import EvkfError
from evkf.live.checkpoint import load_newest
from evkf.live.pipes import ROOM
from evkf.live.plan import CHECKPOINTS, Plan, parts
from evkf.live.rig import rig_model
from evkf.numerics.jax_config import low_latency
from evkf.web.packing import finite, pack
from evkf.web.survey import Rest, field, rest, visited, worth

NICENESS = 5
"""More than that of the web process: the session comes first, then the page, then this."""

EVERY_S = 1.0
"""Seconds between looks at the checkpoints."""


class Reader:
    """Reads the checkpoints of a session.

    Args:
        folder: Of the session.
    """

    def __init__(self, folder: Path):
        self._folder, self._plan = folder / CHECKPOINTS, Plan.read(folder)
        self._made = parts(self._plan, folder)
        self._like = self._made.learner.init(self._made.model)
        self._name, self._saved = "", 0.0
        self._found: Any = None
        self._rest: Rest | None = None
        self._before: Any = None
        self._done: set[tuple[int, ...]] = set()
        self._true: Dynamics | None = None
        if self._plan.source == "rig":
            size = self._plan.latents, self._plan.channels, self._plan.bin_width
            true = rig_model(*size, self._plan.seed, stimulated=self._plan.stimulates)
            self._true = true.dynamics

    def look(self, asked: list[dict[str, Any]]) -> list[bytes]:
        """Messages of what is new: fields that are asked for, and evidence.

        Args:
            asked: Planes, and where the state is: the other latents are held there.
        """
        said = self._load()
        if self._found is None:
            return said
        for each in asked:
            plane = tuple(each["plane"])
            if plane not in self._done:
                said += self._field(each["plane"], each["at"])
                self._done.add(plane)
        return said

    def _load(self) -> list[bytes]:
        """Read the newest checkpoint if it is new; the evidence that it gives."""
        names = sorted(path.name for path in self._folder.glob("[0-9]*.safetensors"))
        if not names or names[-1] == self._name:
            return []
        saved = (self._folder / names[-1]).stat().st_mtime
        found = load_newest(self._folder, like=self._like)
        if found is None:
            return []
        self._name, self._found, self._saved = names[-1], found, saved
        self._done, self._rest = set(), None
        before, self._before = self._before, found.state
        if before is None:
            # Of a session that has ended, there is another besides the last.
            other = load_newest(self._folder, at_most=found.bin - 1, like=self._like)
            before = None if other is None else other.state
        if before is None:
            return []
        compared = worth(self._made.learner, self._made.model, before, found.state)
        if compared is None:
            return []
        return [json.dumps(finite({"evidence": compared._asdict()})).encode()]

    def _field(self, plane: list[int], at: list[float] | None) -> list[bytes]:
        dynamics, states = self._found.state.model.dynamics, visited(self._found.state)
        if not len(states) or not isinstance(dynamics, GaussianDynamics):
            return []
        held = states[-1] if at is None else np.asarray(at, states.dtype)
        shown = field(dynamics, states, plane, held, self._true)
        if self._rest is None:
            self._rest = rest(dynamics, states)
        known = zip(self._rest.fixed.tolist(), self._rest.stable.tolist(), strict=True)
        header = {
            "kind": "field",
            "plane": plane,
            "bins": self._found.bin,
            "seconds_old": time.time() - self._saved,
            "fixed": [{"at": place, "stable": stable} for place, stable in known],
        }
        arrays = {name: each for name, each in shown._asdict().items() if each is not None}
        return [pack(header, {**arrays, "cycle": self._rest.cycle.astype(np.float32)})]


def run(reader: Reader, own: socket.socket) -> None:
    """Look whenever there may be something new, until the other end is closed."""
    asked: list[dict[str, Any]] = []
    looked = 0.0
    while True:
        wait = max(looked + EVERY_S - time.monotonic(), 0.0) if asked else None
        if select.select([own], [], [], wait)[0]:
            data = own.recv(ROOM)
            if not data:
                return
            asked = json.loads(data)
        if not asked or time.monotonic() < looked + EVERY_S:
            continue
        looked = time.monotonic()
        try:
            for message in reader.look(asked):
                own.send(message)
        except (EvkfError, OSError, ValueError) as error:
            print(f"no field: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def main() -> None:
    """Be the process."""
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(NICENESS)
    warnings.simplefilter("ignore")
    folder, number = sys.argv[1:]
    low_latency()
    with socket.socket(fileno=int(number)) as own:
        run(Reader(Path(folder)), own)


if __name__ == "__main__":
    main()

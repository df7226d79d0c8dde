"""What checks of live sessions share: a session in a process of its own, fed over ZeroMQ.

python benchmarks/live_kit.py DIR begin|resume|echo PLAN.json
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from evkf.live.answers import Estimate, Flags
from evkf.live.engine import Latent
from evkf.live.frames import Decoder, End
from evkf.live.machine import real_time, rehearse
from evkf.live.plan import Plan, build, fitted, keep_compiled, parts
from evkf.live.run import open_journal, open_session, recall
from evkf.live.zeromq import ZmqSink, ZmqSource
from evkf.numerics.jax_config import low_latency

READY_S = 120.0
"""Seconds that a session may take to begin, compiling included."""


class Server:
    """A session in a process of its own.

    Args:
        folder: Of the session.
        plan: Its plan.
        how: "begin", "resume", or "echo": the same frames and estimates, and nothing in between.
        core: To keep it on, if on one alone.
    """

    def __init__(self, folder: Path, plan: Plan, how: str = "begin", core: int | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self.begun = time.monotonic()
        command = [sys.executable, __file__, str(folder), how, json.dumps(plan._asdict())]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if core is not None:
            os.sched_setaffinity(self.process.pid, {core})

    def wait(self) -> tuple[str, str]:
        """Where it listens and where it publishes, once it does."""
        assert self.process.stdout is not None
        alarm = threading.Timer(READY_S, self.process.kill)
        alarm.start()
        try:
            for text in self.process.stdout:
                if text.startswith("{"):
                    said = json.loads(text)
                    return said["source"], said["sink"]
        finally:
            alarm.cancel()
        raise RuntimeError("the session did not begin")

    def kill(self) -> None:
        """End it as the kernel would."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def end(self, timeout: float = 60.0) -> dict[str, Any]:
        """What it says of itself at its end, which is awaited."""
        assert self.process.stdout is not None
        last = {}
        for text in self.process.stdout:
            if text.startswith("{"):
                last = json.loads(text)
        self.process.wait(timeout)
        self.process.stdout.close()
        return last

    def stop(self) -> dict[str, Any]:
        """Ask it to end."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()


def _serve(folder: Path, how: str, plan: Plan) -> None:
    asked = False

    def ask(*_: Any) -> None:
        nonlocal asked
        asked = True

    signal.signal(signal.SIGTERM, ask)
    low_latency()
    keep_compiled(folder)
    if how == "echo":
        _echo(plan, lambda: asked)
        return
    player = journal = None
    if how == "begin":
        plan, made, engine, costs = fitted(plan, folder, parts(plan, folder))
        plan.write(folder)
    else:
        plan = Plan.read(folder)._replace(address=plan.address, publish=plan.publish)
        made = parts(plan, folder)
        engine = build(plan, made)
        costs = rehearse(engine)
        journal = open_journal(folder, plan)
        player = recall(folder, engine, made.counts)
    assert plan.address is not None
    assert plan.publish is not None
    with real_time() as refused:
        source, sink = ZmqSource(plan.address), ZmqSink(plan.publish)
    session = open_session(
        folder, plan, engine, costs, made.counts, source, [sink], journal, player
    )
    said = {"source": source.address, "sink": sink.address, "costs": costs._asdict()}
    if player is not None:
        said["due"] = player.due.seq
    print(json.dumps(said | {"real_time": refused is None}), flush=True)
    with real_time():
        report = session.run(lambda: asked)
    learner = engine.learner
    told = report.plain | {
        "windows": [learner.num_windows, learner.window],
        "costs": costs._asdict(),
    }
    print(json.dumps(told), flush=True)


def _echo(plan: Plan, stop: Any) -> None:
    """Frames in and estimates out, and nothing in between: what the machine itself costs."""
    assert plan.address is not None
    assert plan.publish is not None
    with real_time():
        source, sink = ZmqSource(plan.address), ZmqSink(plan.publish)
    decoder = Decoder(plan.channels, dtype=np.float32)
    mean, rate = np.zeros(plan.latents, np.float32), np.zeros(plan.channels, np.float32)
    ahead = np.zeros((plan.horizon, plan.latents), np.float32)
    latent = Latent(mean, np.eye(plan.latents, dtype=np.float32), rate, 0.0, 0, ahead, ahead)
    print(json.dumps({"source": source.address, "sink": sink.address}), flush=True)
    ended = False
    with real_time():
        while not ended and not stop():
            for _, data in source.receive(0.02, 4096):
                frame = decoder.decode(data)
                if isinstance(frame, End):
                    ended = True
                    break
                now = time.monotonic_ns()
                sink.publish(Estimate(frame.seq, Flags.NOTHING, *latent, 0, 0, now))
    source.close()
    sink.close()


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    _serve(Path(sys.argv[1]), sys.argv[2], Plan(**json.loads(sys.argv[3])))

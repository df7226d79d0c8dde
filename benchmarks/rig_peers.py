"""What checks of real peers share: a gateway in a process of its own, and what it sends."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evkf.live.frames import Decoder, Frame
from evkf.rigs.gateway import RigSource, Run, Setup

WAIT_S = 60.0
"""On a busy machine a process takes long to begin."""


class Received:
    """Frames that a gateway sent."""

    def __init__(self, source: RigSource, channels: int):
        self._source, self._decoder = source, Decoder(channels)
        self.frames: list[Frame] = []

    @property
    def odd(self) -> dict[str, int]:
        """What the session was told that the gateway noted."""
        return self._source.odd

    def until(self, holds: Callable[[list[Frame]], bool]) -> list[Frame]:
        """Take frames until something holds of them."""
        end = time.monotonic() + WAIT_S
        while not holds(self.frames):
            assert time.monotonic() < end, f"only {len(self.frames)} frames came"
            assert not self._source.gone, "the gateway is gone"
            self.some(0.1)
        return self.frames

    def some(self, timeout: float) -> None:
        """Take the frames that are there; waits for the first so many seconds."""
        for _, data in self._source.receive(timeout, 1000):
            frame = self._decoder.decode(data)
            assert isinstance(frame, Frame)
            self.frames.append(frame)


@contextmanager
def gateway(run: Run, setup: Setup) -> Iterator[Received]:
    """A gateway at work; it must end by itself when the session is gone."""
    source = RigSource(run, setup)
    process = source._process
    # From when frames are asked for, it speaks to the rig.
    source.receive(0.0, 0)
    try:
        yield Received(source, len(setup.units))
    finally:
        source.close()
    assert process.exitcode == 0

"""A live session: bins in from a source, latents out to sinks, all of it in a journal.

One thread runs it. For every bin: read the frame, put it in order, write it into the journal,
filter, publish; then, if the time left allows, learn. What waits for a disk waits elsewhere.
"""

import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from evkf.live.answers import Ack, Estimate, Refusal, Told
from evkf.live.engine import Costs, Engine
from evkf.live.frames import Decoder, End, Frame
from evkf.live.journal import Journal
from evkf.live.messages import FrameError
from evkf.live.order import Order, OrderError, Ready
from evkf.live.ports import Phase, Report, Saver, Settings, Sink, Source
from evkf.live.records import Bin, Kind, Learning, Lost, Refused, Step, encode_words
from evkf.live.slack import Budget, Latencies

QUARANTINE, CUT = 1000, 512
"""Refused frames that are kept, and bytes of each."""

DRAIN_S = 10.0
"""Seconds that the end of a session waits for the disk."""

TELL_NS, TIDY_NS = 500_000_000, 5_000_000_000
"""Time between reports, and between collections of garbage."""


class Session:
    """One session.

    Args:
        engine: Filter and learner, at the state to go on from.
        source: Where bins come from.
        sinks: Where estimates go.
        journal: Where all is written down.
        settings: How it is run.
        costs: Of the engine, rehearsed.
        counts: Whether observations are counts.
        first: Number of the first bin due.
        saver: Keeps checkpoints.
        tell: Told of the session twice a second.
        log: Told a line for every change of state.
        clock: Nanoseconds.
    """

    def __init__(
        self,
        engine: Engine,
        source: Source,
        sinks: Sequence[Sink],
        journal: Journal,
        settings: Settings,
        costs: Costs,
        counts: bool = True,
        first: int = 0,
        saver: Saver | None = None,
        tell: Callable[[Report], None] | None = None,
        log: Callable[[str], None] = print,
        clock: Callable[[], int] = time.monotonic_ns,
    ):
        self.engine, self.source, self.sinks, self.journal = engine, source, sinks, journal
        self.settings, self._clock, self._log = settings, clock, log
        self._decoder = Decoder(engine.num_channels, engine.num_inputs, counts, engine.dtype)
        self._order = Order(settings.window, first, int(settings.patience * 1e9))
        self.phase, self.why = Phase.STARTING, ""
        self._period = int(settings.period * 1e9)
        self._save_ns = int(settings.checkpoint_every * 1e9)
        self._budget = Budget([int(costs.learn * 1e9)] * 99 + [int(costs.learn_p99 * 1e9)])
        self._tidying = Budget([int(costs.learn * 1e9)])
        self._latencies = Latencies()
        self._key = engine.key
        # Bins that are not durable yet: position in the journal, number, and who to tell.
        self._pending: deque[tuple[int, int, Any]] = deque()
        self._acknowledged, self._again = first - 1, None
        self._refused, self._backlog, self._learned, self._elbo = 0, 0, 0, 0.0
        self._has_learned = self._tried = False
        self._jumped: int | None = None
        self._newest_ns = 0
        self._saver, self._tell = saver, tell
        self._begun = engine.bins
        self._told = (clock(), engine.bins)
        self._saved_ns = self._tidied_ns = clock()

    def run(self, stop: Callable[[], bool] = lambda: False) -> Report:
        """Take in bins until the stream ends or `stop` says so, and close."""
        self._enter(Phase.READY, "waiting for bins")
        collects = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            while self.phase not in (Phase.CLOSED, Phase.FAILED) and not stop():
                self.turn()
        except Exception as error:
            self._enter(Phase.FAILED, f"{type(error).__name__}: {error}")
            raise
        finally:
            if collects:
                gc.enable()
            gc.unfreeze()
            self.close()
        return self.report()

    def turn(self) -> None:
        """Take in what is there, answer, and use what time is left."""
        messages = self.source.receive(self._wait(), self.settings.backlog)
        now = self._clock()
        self._backlog = max(self._backlog, len(messages))
        for peer, data in messages:
            self._take(peer, data, now)
        self._settle(self._order.expire(now), None)
        self._acknowledge()
        if len(messages) <= 1:
            self._use_slack()
        self._watch()

    def _wait(self) -> float:
        """Seconds to wait for a frame: not for long when there is someone to tell."""
        return 0.001 if self._pending or self._order.waiting else 0.02

    def _take(self, peer: Any, data: bytes, now: int) -> None:
        try:
            frame = self._decoder.decode(data)
            if isinstance(frame, End):
                self._end(peer, frame)
                return
            self._newest_ns = now
            before = self._order.next
            ready = self._order.push(frame.seq, (frame, bytes(data), now), now)
            if frame.seq < before:
                self._again = peer
        except FrameError as error:
            self._refuse(peer, data, error.code, error.seq, error.message)
            ready = [] if error.seq is None else self._given_up(error.seq)
        except OrderError as error:
            ready = self._jump(peer, data, now, error)
        self._settle(ready, peer)

    def _given_up(self, seq: int) -> list[Ready]:
        try:
            return self._order.lose(seq)
        except OrderError:
            return []

    def _jump(self, peer: Any, data: bytes, now: int, error: OrderError) -> list[Ready]:
        """Go on from another number when a second bin confirms it."""
        if self._jumped is None or error.seq != self._jumped + 1:
            self._jumped = error.seq
            self._refuse(peer, data, error.code, error.seq, error.message)
            return []
        self._jumped = None
        self._settle(self._order.restart(error.seq), peer)
        self.journal.append(Kind.RESTART, encode_words(seq=error.seq))
        self._log(f"bins go on from {error.seq}")
        frame = self._decoder.decode(data)
        assert isinstance(frame, Frame)
        return self._order.push(frame.seq, (frame._replace(fresh=True), bytes(data), now), now)

    def _refuse(self, peer: Any, data: bytes, code: str, seq: int | None, text: str) -> None:
        self._refused += 1
        self.source.answer(peer, Refusal(code, seq, text).encode())
        if self._refused <= QUARANTINE:
            kept = Refused(code, text, bytes(memoryview(data)[:CUT]))
            self.journal.append(Kind.REFUSED, kept.encode())

    def _settle(self, ready: Sequence[Ready], peer: Any) -> None:
        for seq, item in ready:
            if item is None:
                position = self.journal.append(Kind.LOST, Lost(seq, 1).encode())
                latent, begin, told = self.engine.bridge(), self._newest_ns, Told.BRIDGED
            else:
                frame, data, begin = item
                position = self.journal.append(Kind.BIN, Bin(begin, data).encode())
                latent = self.engine.observe(frame.y, frame.mask, frame.u, frame.fresh)
                told = Told.NOTHING
            told |= Told.LEARNED if self._has_learned else Told.NOTHING
            told |= Told.NOT_DURABLE if self.journal.durable <= position else Told.NOTHING
            end = self._clock()
            estimate = Estimate(
                seq, told, latent.mean, latent.cov, latent.rate, latent.elbo, latent.status, begin,
                end,
            )  # fmt: skip
            for sink in self.sinks:
                sink.publish(estimate)
            self._latencies.add(end - begin)
            self.journal.append(Kind.STEP, Step.of(seq, latent).encode())
            self._pending.append((position, seq, peer))
            self._elbo, self._has_learned, self._tried = latent.elbo, False, False

    def _acknowledge(self) -> None:
        """Tell senders what is durable, and of what could not be kept."""
        settled, last, to = self.journal.settled, -1, self._again
        while self._pending and self._pending[0][0] < settled:
            position, seq, peer = self._pending.popleft()
            if self.journal.durable_through(position):
                last, to = seq, peer
            else:
                text = "the disk refused for so long that there was no room for it"
                self.source.answer(peer, Refusal("not_kept", seq, text).encode())
                # What follows cannot be computed again from the journal alone.
                self._saved_ns = -TIDY_NS * 1000
        if last >= 0:
            self._acknowledged = last
        if (last >= 0 or self._again is not None) and self._acknowledged >= 0:
            self.source.answer(to, Ack(self._acknowledged).encode())
        self._again = None

    def _use_slack(self) -> None:
        """Learn if it fits before the next bin; else, or after it, what else there is to do."""
        now = self._clock()
        left = self._newest_ns + self._period - now
        wanted = self.settings.learn and self.engine.due and not self._tried
        if wanted and self.engine.bins and self._budget.fits(left, now):
            learned = self.engine.learn()
            after = self._clock()
            self._budget.spent(after - now)
            kept = Learning(self.engine.bins, learned, self._key)
            self.journal.append(Kind.LEARN, kept.encode())
            self._learned += 1
            self._has_learned = self._tried = True
        elif now - self._tidied_ns > TIDY_NS and self._tidying.fits(left, now):
            gc.collect()
            self._tidied_ns = self._clock()
            self._tidying.spent(self._tidied_ns - now)
        elif self._saver is not None and now - self._saved_ns > self._save_ns:
            self._saved_ns = now
            self._saver.save(self.engine, self.journal.position, self._order.next)

    def _watch(self) -> None:
        """Tell of trouble with the disk, and of the session now and then."""
        trouble = self.journal.trouble
        if trouble and self.phase == Phase.READY:
            self._enter(Phase.DEGRADED, f"{trouble}; filtering goes on, nothing is acknowledged")
        elif self.phase == Phase.DEGRADED and not trouble:
            self._enter(Phase.READY, "the journal is written again")
        now = self._clock()
        if self._tell is not None and now - self._told[0] >= TELL_NS:
            self._tell(self.report())
            self._told, self._backlog = (now, self.engine.bins), 0

    def report(self) -> Report:
        """What there is to tell now."""
        since, bins = self._told
        elapsed = max(self._clock() - since, 1) / 1e9
        median, high, higher = (self._latencies.quantile(share) for share in (0.5, 0.99, 0.999))
        return Report(
            phase=self.phase,
            why=self.why,
            bins=self.engine.bins,
            taken=self.engine.bins - self._begun,
            rate=(self.engine.bins - bins) / elapsed,
            latency_ns=(median, high, higher, self._latencies.worst),
            counters=self._order.counters,
            refused=self._refused,
            backlog=self._backlog,
            learned=self._learned,
            elbo=self._elbo,
            acknowledged=self._acknowledged,
            exposure_ms=self.journal.exposure_ms,
        )

    def _enter(self, phase: Phase, why: str) -> None:
        self._log(f"{self.phase} -> {phase}: {why}")
        self.phase, self.why = phase, why
        self.journal.append(Kind.PHASE, encode_words(phase=phase, why=why))

    def _end(self, peer: Any, frame: End) -> None:
        try:
            self._settle(self._order.flush(frame.seq), peer)
        except OrderError as error:
            self._refuse(peer, b"", error.code, error.seq, error.message)
            return
        self._again = peer
        self.journal.append(Kind.END, encode_words(**self._order.counters._asdict()))
        self._finish("the stream ended")

    def _finish(self, why: str) -> None:
        """All becomes durable, the sender is told, and that is the end."""
        self.journal.wait(self.journal.position, timeout=DRAIN_S)
        self._acknowledge()
        self._enter(Phase.CLOSED, why)

    def close(self) -> None:
        """Close what is open; the source and the sinks too."""
        if self.phase not in (Phase.CLOSED, Phase.FAILED):
            self._finish("stopped")
        if self._saver is not None:
            if self.phase == Phase.CLOSED:
                self._saver.save(self.engine, self.journal.position, self._order.next)
            self._saver.close()
        self.journal.close()
        self.source.close()
        for sink in self.sinks:
            sink.close()

"""A live session: bins in from a source, latents out to sinks, all of it in a journal.

One thread runs it. For every bin: read the frame, put it in order, filter, publish, append to the
journal; then, if the time left allows, learn. What waits for a disk waits elsewhere.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evkf.live.answers import Ack, Estimate, Flags, Refusal
from evkf.live.desk import Action, Ask
from evkf.live.engine import Costs, Engine
from evkf.live.frames import Decoder, End, Frame
from evkf.live.journal import Journal
from evkf.live.loop import Loop
from evkf.live.machine import LOWEST, aside, undisturbed
from evkf.live.messages import FrameError
from evkf.live.order import Order, OrderError, Ready
from evkf.live.pipes import PEER
from evkf.live.ports import Due, Phase, Report, Saver, Settings, Sink, Source
from evkf.live.receipts import Receipts
from evkf.live.records import Bin, Kind, Lost, Refused, Step, encode_words
from evkf.live.slack import Latencies
from evkf.live.spare import Spare

QUARANTINE, CUT = 1000, 512
"""Refused frames that are kept, and bytes of each."""

DRAIN_S = 10.0
"""Seconds that the end of a session waits for the disk."""

TELL_NS = 500_000_000
"""Time between reports."""

BEHIND_NS = 100_000_000
"""Time that waiting frames span, above which a session is late anyhow and gives way to others."""

AT_ONCE_NS = 50_000
"""A frame that came sooner than this after it was asked for was there before."""


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
        due: What the next bin will be.
        saver: Keeps checkpoints.
        tell: Told of the session twice a second.
        actions: Gives what the operator has asked for since the last call.
        loop: Gives the inputs, where a controller does.
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
        due: Due = Due(),  # noqa: B008
        saver: Saver | None = None,
        tell: Callable[[Report], None] | None = None,
        actions: Callable[[], list[Action]] = list,
        loop: Loop | None = None,
        log: Callable[[str], None] = print,
        clock: Callable[[], int] = time.monotonic_ns,
    ):
        self.engine, self.source, self.sinks, self.journal = engine, source, sinks, journal
        self.settings, self._clock, self._log = settings, clock, log
        self._loop, inputs = loop, 0 if loop else engine.num_inputs
        self._decoder = Decoder(engine.num_channels, inputs, counts, engine.dtype)
        self._order = Order(settings.reorder, due.seq, int(settings.patience * 1e9))
        self._fresh, self._sent_ns = due.fresh, due.sent_ns
        self._bin_sent_ns, self._frozen, self._ended = due.sent_ns, due.frozen, due.ended
        self.phase, self.why = Phase.STARTING, ""
        self._period = round(settings.period * 1e9)
        self._latencies = Latencies()
        self._receipts = Receipts(due.seq)
        self._refused, self._backlog, self._behind, self._elbo = 0, 0, 0, 0.0
        self._jumped: int | None = None
        self._due_ns = self._looked_ns = 0
        self._holes = journal.holes
        self._saver, self._tell, self._actions = saver, tell, actions
        self._begun = engine.bins
        self._told = (clock(), engine.bins)
        save_ns = int(settings.checkpoint_every * 1e9)
        self._spare = Spare(engine, journal, costs, save_ns, lambda: self._due, loop, saver, clock)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Report:
        """Take in bins until the stream ends or `stop` says so, and close."""
        self._enter(Phase.READY, "bins are taken in as they come")
        self._spare.save_soon()
        try:
            with undisturbed():
                while not self._over and not stop():
                    self.turn()
        except Exception as error:
            self._enter(Phase.FAILED, f"{type(error).__name__}: {error}")
            raise
        finally:
            self.close()
        return self.report()

    @property
    def _over(self) -> bool:
        return self.phase in (Phase.CLOSED, Phase.FAILED)

    def turn(self) -> None:
        """Take in what is there, answer, and use what time is left."""
        asked = self._clock()
        messages = self.source.receive(self._wait(), self.settings.backlog)
        now = self._clock()
        if messages:
            # A frame that was there already came after the last turn: when it was due, say.
            there = max(min(now, self._due_ns), self._looked_ns)
            self._due_ns = now if now - asked > AT_ONCE_NS else there
        self._looked_ns = now
        self._backlog = max(self._backlog, len(messages))
        late = len(messages) * (self._period or BEHIND_NS) > BEHIND_NS
        with aside(LOWEST) if late else contextlib.nullcontext():
            for number, (peer, data) in enumerate(messages, start=1):
                if self._over:
                    return
                self._behind = len(messages) - number
                self._take(peer, data, now)
        self._settle(self._order.expire(now))
        self._acknowledge()
        for action in self._actions():
            self._do(action)
        with aside(LOWEST):
            self._use_slack(busy=len(messages) > 1)
        self._watch()
        if not messages and self.source.gone:
            self._finish("the source is gone")

    def _wait(self) -> float:
        """Seconds to wait for a frame: not for long when there is someone to tell."""
        return 0.001 if self._receipts or self._order.waiting else 0.02

    def _take(self, peer: Any, data: bytes, now: int) -> None:
        try:
            frame = self._decoder.decode(data)
            if isinstance(frame, End):
                self._end(peer, frame)
                return
            ready = self._push(peer, frame, data, now)
        except FrameError as error:
            also = (
                "; a controller gives them" if self._loop and error.code == "wrong_inputs" else ""
            )
            self._refuse(peer, data, error.code, error.seq, error.message + also)
            ready = [] if error.seq is None else self._given_up(error.seq)
        except OrderError as error:
            ready = self._jump(peer, data, now, error)
        self._settle(ready)

    def _push(self, peer: Any, frame: Frame, data: bytes, now: int) -> list[Ready]:
        due = self._order.next
        # What is sent again is the same as before; sent later, it is of a sender that began anew.
        anew = due > 1 and (frame.seq == 0 or (frame.seq == 1 and self._jumped == 0))
        if anew and frame.sent_ns > self._sent_ns > 0:
            raise OrderError("anew", f"sent after bin {due - 1}", frame.seq)
        ready = self._order.push(frame.seq, (frame, bytes(data), now, peer), now)
        self._sent_ns = max(self._sent_ns, frame.sent_ns)
        if frame.seq < due:
            self._receipts.repeat(peer)
        else:
            self._due_ns += self._period
        return ready

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
        self._jumped, back = None, error.seq < self._order.next
        self._settle(self._order.restart(error.seq))
        if back:
            self._receipts.forget()
        self.journal.append(Kind.RESTART, encode_words(seq=error.seq))
        self._fresh, self._sent_ns = True, 0
        frame = self._decoder.decode(data)
        assert isinstance(frame, Frame)
        ready = self._push(peer, frame, data, now)
        self._log(f"bins go on from {error.seq}")
        return ready

    def _refuse(self, peer: Any, data: bytes, code: str, seq: int | None, text: str) -> None:
        self._refused += 1
        self.source.answer(peer, Refusal(code, seq, text).encode())
        if self._refused <= QUARANTINE:
            kept = Refused(code, text, bytes(memoryview(data)[:CUT]))
            self.journal.append(Kind.REFUSED, kept.encode())

    def _settle(self, ready: Sequence[Ready]) -> None:
        for seq, item in ready:
            if item is None:
                kind, record, begin, peer = Kind.LOST, Lost(seq, 1), self._clock(), None
                sent = self._bin_sent_ns and self._bin_sent_ns + self._period
                latent = self.engine.bridge(self._input(begin, None))
                flags = Flags.NOT_DURABLE | Flags.BRIDGED
            else:
                frame, data, begin, peer = item
                sent = frame.sent_ns
                kind, record, flags = Kind.BIN, Bin(begin, data), Flags.NOT_DURABLE
                fresh, self._fresh = frame.fresh or self._fresh, False
                if frame.mask is not None and not frame.mask.any():
                    flags |= Flags.BRIDGED
                u = self._input(begin, frame.u)
                latent = self.engine.observe(frame.y, frame.mask, u, fresh)
            if self._spare.has_learned:
                flags |= Flags.LEARNED
            end = self._clock()
            estimate = Estimate(seq, flags, *latent, sent, begin, end)
            for sink in self.sinks:
                sink.publish(estimate)
            self._latencies.add(end - begin)
            self._bin_sent_ns = sent
            # Only now: to append wakes the thread that writes, which would be in the way.
            position = self.journal.append(kind, record.encode())
            self.journal.append(Kind.STEP, Step.of(seq, latent).encode())
            if self.journal.is_lost(position):
                text = "the disk refused for so long that there was no room for it"
                self.source.answer(peer, Refusal("not_kept", seq, text).encode())
            else:
                self._receipts.expect(position, seq, peer)
            self._elbo, self._spare.has_learned = latent.elbo, False
            if self._loop is not None:
                self._loop.after(estimate, self.engine.bins, self.phase, self._behind)

    def _input(self, now: int, given: np.ndarray | None) -> np.ndarray | None:
        return given if self._loop is None else self._loop.input(now)

    def _acknowledge(self) -> None:
        """Tell the sender up to where bins are durable."""
        told = self._receipts.take(self.journal.settled)
        if told is not None:
            peer, seq = told
            self.source.answer(peer, Ack(seq).encode())

    def _use_slack(self, busy: bool) -> None:
        now = self._clock()
        learns = self.settings.learn and not self._frozen
        self._spare.use(now, 0 if busy else self._due_ns - now, self._period, learns)

    @property
    def _due(self) -> Due:
        given = None if self._loop is None else self._loop.values.tolist()
        told = self._fresh, self._sent_ns, self._frozen
        return Due(self._order.next, *told, given, self._ended)

    def _watch(self) -> None:
        """Tell of trouble with the disk, and of the session now and then."""
        trouble = self.journal.trouble
        if trouble and self.phase == Phase.READY:
            self._enter(Phase.DEGRADED, f"{trouble}; filtering goes on, nothing is acknowledged")
        elif self.phase == Phase.DEGRADED and not trouble:
            self._enter(Phase.READY, "the journal is written again")
        if self.journal.holes > self._holes:
            # What follows cannot be computed from the journal alone: a checkpoint, and soon.
            self._holes = self.journal.holes
            self._spare.save_soon()
        now = self._clock()
        if self._tell is not None and now - self._told[0] >= TELL_NS:
            self._tell(self.report())
            self._told, self._backlog = (now, self.engine.bins), 0

    def _do(self, action: Action) -> None:
        """What an operator asks for."""
        if self._loop is not None:
            self._loop.ask(action.ask, action.text)
        self.journal.append(Kind.ACTION, encode_words(**action._asdict(), seq=self._order.next))
        if action.ask in (Ask.FREEZE, Ask.THAW):
            self._frozen = action.ask == Ask.FREEZE
        elif action.ask == Ask.SAVE:
            self._spare.save_soon()
        elif action.ask in (Ask.SPEED, Ask.RESET) and self.settings.paced:
            self.source.answer(PEER, action.encode())
            if action.ask == Ask.SPEED:
                self._period = int(self.settings.paced / float(action.text) * 1e9)
        self._log(f"the operator: {action.ask} {action.text}".rstrip())

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
            learned=self._spare.learned,
            elbo=self._elbo,
            acknowledged=self._receipts.last,
            exposure_ms=self.journal.exposure_ms,
            frozen=self._frozen,
            odd=self.source.odd,
            stimulation="" if self._loop is None else self._loop.told,
        )

    def _enter(self, phase: Phase, why: str) -> None:
        before, self.phase, self.why = self.phase, phase, why
        self.journal.append(Kind.PHASE, encode_words(phase=phase, why=why))
        self._log(f"{before} -> {phase}: {why}")

    def _end(self, peer: Any, frame: End) -> None:
        try:
            if frame.seq < self._order.next:
                raise OrderError("behind", f"bin {self._order.next} is due", frame.seq)
            self._settle(self._order.flush(frame.seq))
        except OrderError as error:
            self._refuse(peer, b"", error.code, error.seq, error.message)
            return
        self._ended = True
        self._receipts.repeat(peer)
        self.journal.append(Kind.END, encode_words(**self._order.counters._asdict()))
        self._finish("the stream ended")

    def _finish(self, why: str) -> None:
        """All becomes durable, the sender is told, and that is the end."""
        position = self.journal.position
        self.journal.wait(position, timeout=DRAIN_S)
        self._acknowledge()
        if self.journal.settled >= position:
            self._enter(Phase.CLOSED, why)
        else:
            self._enter(Phase.FAILED, f"{why}, but not all is written: {self.journal.trouble}")

    def close(self) -> None:
        """Close what is open; the source and the sinks too. Stimulation ends first."""
        if self._loop is not None:
            self._loop.close()
        if not self._over:
            self._finish("stopped")
        if self._saver is not None:
            if self.phase == Phase.CLOSED:
                self._saver.save(self.engine, self.journal.position, self._due)
            self._saver.close()
        self.journal.close()
        if self._tell is not None:
            # The last: who never hears that it was closed knows that it died.
            self._tell(self.report())
        self.source.close()
        for sink in self.sinks:
            sink.close()

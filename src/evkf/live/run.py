"""A session put together: begun in a new folder, or taken up again from an old one."""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from evkf.learning import LearnerState
from evkf.live.answers import Estimate, Flags
from evkf.live.checkpoint import Checkpoint, load_newest, save
from evkf.live.desk import Action
from evkf.live.disk import DISK, Disk
from evkf.live.engine import Costs, Engine
from evkf.live.journal import Journal
from evkf.live.loop import Closed, Loop
from evkf.live.plan import CHECKPOINTS, JOURNAL, LOG, Plan, build, describe, parts
from evkf.live.ports import Due, Report, Sink, Source
from evkf.live.recall import Agreement, Player, Progress, records
from evkf.live.records import Kind, encode_words
from evkf.live.segments import end_of
from evkf.live.session import Session

Tell = Callable[[Report], None]
Log = Callable[[str], None]


class CheckpointSaver:
    """Writes checkpoints in a thread of its own, each when all it rests on is durable.

    Args:
        folder: Where to.
        journal: That of the session.
        log: Told when the disk refuses.
        disk: To use.
        show: Shown what is known at each, in that thread.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        log: Log,
        disk: Disk = DISK,
        show: Callable[[LearnerState], None] | None = None,
    ):
        self._folder, self._journal, self._log, self._disk = folder, journal, log, disk
        self._show = show
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._busy = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evkf-checkpoints", daemon=True)
        self._thread.start()

    def save(self, engine: Engine, position: int, due: Due) -> bool:
        """Keep what the engine knows; false while the last is still being written."""
        if self._busy.is_set():
            return False
        self._busy.set()
        self._queue.put((engine.snapshot(), engine.bins, position, due))
        return True

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            take, bins, position, due = item
            try:
                state = take()
                if self._show is not None:
                    self._show(state)
                # After a hole it never is; what follows can only begin from here then.
                self._journal.wait(position, timeout=10)
                if self._journal.settled >= position:
                    note = {"position": str(position), "due": json.dumps(due)}
                    save(self._folder, bins, state, note, self._disk)
            except Exception as error:
                # The session goes on; the next may succeed.
                self._log(f"no checkpoint: {error}")
            finally:
                self._busy.clear()

    def close(self) -> None:
        """Finish what was begun."""
        self._queue.put(None)
        self._thread.join(timeout=30)


def recall(
    folder: Path,
    engine: Engine,
    counts: bool,
    whole: bool = False,
    progress: Progress | None = None,
) -> Player:
    """Compute a session again, up to the last bin that its journal holds.

    Args:
        folder: Of the session.
        engine: Its engine before the first bin, which is taken to the last.
        counts: Whether observations are counts.
        whole: From its first bin on, not from the newest checkpoint.
        progress: Told how many records of how many have been taken.

    Returns:
        What took the records; it knows the bin that is due, and how they compare.
    """
    position, due = 0, Due()
    found = None if whole else _newest(folder, engine)
    if found is not None:
        engine.state = found.state
        position, due = int(found.metadata["position"]), Due(*json.loads(found.metadata["due"]))
    player = Player(engine, counts, due)
    player.play(records(folder / JOURNAL, progress, position))
    return player


def _newest(folder: Path, engine: Engine) -> Checkpoint | None:
    """The newest checkpoint of what the journal holds: a loss of power may have taken its end."""
    end, like = end_of(folder / JOURNAL), engine.state
    found = load_newest(folder / CHECKPOINTS, like=like)
    while found is not None and int(found.metadata["position"]) > end:
        # It must not be taken for one of the records to come.
        DISK.remove(found.path)
        DISK.sync_folder(found.path.parent)
        found = load_newest(folder / CHECKPOINTS, at_most=found.bin - 1, like=like)
    return found


def replay(folder: Path, plan: Plan, progress: Progress | None = None) -> Agreement:
    """Compute a session again from its first bin, and compare with what it published."""
    made = parts(plan, folder)
    engine = build(plan, made)
    return recall(folder, engine, made.counts, whole=True, progress=progress).agreement


def open_journal(folder: Path, plan: Plan, disk: Disk = DISK) -> Journal:
    """Open the journal of a session: nobody else can write to it then, and its end is known.

    Do so before a session is recalled: what is read then is what the disk has.
    """
    return Journal.open(folder / JOURNAL, plan.policy, disk)


def open_session(
    folder: Path,
    plan: Plan,
    engine: Engine,
    costs: Costs,
    counts: bool,
    source: Source,
    sinks: Sequence[Sink],
    journal: Journal | None = None,
    player: Player | None = None,
    tell: Tell | None = None,
    actions: Callable[[], list[Action]] = list,
    closed: Closed | None = None,
    log: Log | None = None,
    disk: Disk = DISK,
) -> Session:
    """Put a session together.

    Args:
        folder: Of the session.
        plan: Its plan.
        engine: At the state to go on from.
        costs: Of the engine.
        counts: Whether observations are counts.
        source: Where bins come from.
        sinks: Where estimates go.
        journal: What `open_journal` gave, if the session is taken up again; else it is opened.
        player: What recalled it, likewise.
        tell: Told of the session twice a second.
        actions: Gives what the operator has asked for since the last call.
        closed: What closes the loop, if something does.
        log: Told a line for every change of state; they are written to a file too.
        disk: To use.
    """
    log = Logger(folder / LOG, log)
    journal = open_journal(folder, plan, disk) if journal is None else journal
    journal.append(Kind.BEGIN, encode_words(**describe(plan, engine, costs)))
    loop = None
    if closed is not None:
        loop = Loop(closed, engine, plan.period, journal, folder, log)
    session = Session(
        engine,
        source,
        sinks,
        journal,
        plan.settings,
        costs,
        counts,
        due=Due() if player is None else player.due,
        saver=CheckpointSaver(folder / CHECKPOINTS, journal, log, disk, loop and loop.offer),
        tell=tell,
        actions=actions,
        loop=loop,
        log=log,
    )
    if player is not None and player.latent is not None:
        now, due = time.monotonic_ns(), player.due
        for sink in sinks:
            said = Estimate(due.seq - 1, Flags.NOTHING, *player.latent, due.sent_ns, now, now)
            sink.publish(said)
    return session


class Logger:
    """Writes lines to a file and tells them to someone, in a thread of its own: neither a disk nor
    a terminal that is stuck holds up who logs.

    Args:
        path: The file.
        also: Told every line.
    """

    def __init__(self, path: Path, also: Log | None = None):
        self._path, self._also = path, also
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="evkf-log", daemon=True).start()

    def __call__(self, line: str) -> None:
        """Log a line."""
        self._lines.put(line)

    def _run(self) -> None:
        while True:
            line = self._lines.get()
            with contextlib.suppress(Exception), self._path.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}\n")
            if self._also is not None:
                with contextlib.suppress(Exception):
                    self._also(line)

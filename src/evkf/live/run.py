"""A session put together: begun in a new folder, or taken up again from an old one."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evkf.live.answers import Estimate, Told
from evkf.live.checkpoint import Checkpoint, load_newest, save
from evkf.live.disk import DISK, Disk
from evkf.live.engine import Costs, Engine
from evkf.live.journal import Journal
from evkf.live.plan import CHECKPOINTS, JOURNAL, LOG, Plan, build, describe, parts
from evkf.live.ports import Report, Sink, Source
from evkf.live.recall import Agreement, Player
from evkf.live.records import Kind, encode_words
from evkf.live.segments import end_of, read
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
    """

    def __init__(self, folder: Path, journal: Journal, log: Log, disk: Disk = DISK):
        self._folder, self._journal, self._log, self._disk = folder, journal, log, disk
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._busy = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evkf-checkpoints", daemon=True)
        self._thread.start()

    def save(self, engine: Engine, position: int, next: int) -> None:
        """Keep what the engine knows; nothing is done while the last is still being written."""
        if not self._busy.is_set():
            self._busy.set()
            self._queue.put((engine.snapshot(), engine.bins, position, next))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            take, bins, position, next = item
            try:
                # After a hole it never is; what follows can only begin from here then.
                self._journal.wait(position, timeout=10)
                if self._journal.settled >= position:
                    note = {"position": str(position), "next": str(next)}
                    save(self._folder, bins, take(), note, self._disk)
            except OSError as error:
                self._log(f"no checkpoint: {error}")
            finally:
                self._busy.clear()

    def close(self) -> None:
        """Finish what was begun."""
        self._queue.put(None)
        self._thread.join(timeout=30)


def recall(folder: Path, engine: Engine, counts: bool, whole: bool = False) -> Player:
    """Compute a session again, up to the last bin that its journal holds.

    Args:
        folder: Of the session.
        engine: Its engine before the first bin, which is taken to the last.
        counts: Whether observations are counts.
        whole: From its first bin on, not from the newest checkpoint.

    Returns:
        What took the records; it knows the bin that is due, and how they compare.
    """
    position = next = 0
    found = None if whole else _newest(folder, engine)
    if found is not None:
        engine.state = found.state
        position, next = int(found.metadata["position"]), int(found.metadata["next"])
    player = Player(engine, counts, next)
    player.play(read(folder / JOURNAL, first=position))
    return player


def _newest(folder: Path, engine: Engine) -> Checkpoint | None:
    """The newest checkpoint of what the journal holds: a loss of power may have taken its end."""
    end, like = end_of(folder / JOURNAL), engine.state
    found = load_newest(folder / CHECKPOINTS, like=like)
    while found is not None and int(found.metadata["position"]) > end:
        found = load_newest(folder / CHECKPOINTS, at_most=found.bin - 1, like=like)
    return found


def replay(folder: Path, plan: Plan) -> Agreement:
    """Compute a session again from its first bin, and compare with what it published."""
    made = parts(plan, folder)
    return recall(folder, build(plan, made), made.counts, whole=True).agreement


def open_session(
    folder: Path,
    plan: Plan,
    engine: Engine,
    costs: Costs,
    counts: bool,
    source: Source,
    sinks: Sequence[Sink],
    player: Player | None = None,
    tell: Tell | None = None,
    log: Log | None = None,
    disk: Disk = DISK,
) -> Session:
    """Open the journal of a folder and put a session together.

    Args:
        folder: Of the session.
        plan: Its plan.
        engine: At the state to go on from.
        costs: Of the engine.
        counts: Whether observations are counts.
        source: Where bins come from.
        sinks: Where estimates go.
        player: What recalled the session, if it is taken up again.
        tell: Told of the session twice a second.
        log: Told a line for every change of state; they are written to a file too.
        disk: To use.
    """
    log = _logged(folder / LOG, log)
    journal = Journal.open(folder / JOURNAL, plan.policy, disk)
    journal.append(Kind.BEGIN, encode_words(**describe(plan, engine, costs)))
    session = Session(
        engine,
        source,
        sinks,
        journal,
        plan.settings,
        costs,
        counts,
        first=0 if player is None else player.next,
        saver=CheckpointSaver(folder / CHECKPOINTS, journal, log, disk),
        tell=tell,
        log=log,
    )
    if player is not None and player.latent is not None:
        now, last = time.monotonic_ns(), player.latent
        said = last.mean, last.cov, last.rate, last.elbo, last.status
        for sink in sinks:
            sink.publish(Estimate(player.next - 1, Told.NOTHING, *said, now, now))
    return session


def _logged(path: Path, also: Log | None) -> Log:
    def write(line: str) -> Any:
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}\n")
        except OSError:
            # A full disk must not stop the session; the line goes to the operator all the same.
            pass
        if also is not None:
            also(line)

    return write

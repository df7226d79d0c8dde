"""What a session does in the time that its bins leave."""

import gc
from collections.abc import Callable

from evkf.live.engine import Costs, Engine
from evkf.live.journal import Journal
from evkf.live.loop import Loop
from evkf.live.ports import Due, Saver
from evkf.live.records import Kind, LearnRecord
from evkf.live.slack import Budget

TIDY_NS = 5_000_000_000
"""Time between collections of garbage."""

LATE = 4
"""What waits for slack so many times as long as it should is done without."""


class Spare:
    """Learns, tells the controller, collects garbage and saves, one at a time and if it fits.

    Args:
        engine: That learns.
        journal: Where that is written down.
        costs: Of the engine, rehearsed.
        save_ns: Time between checkpoints.
        due: Gives what the next bin will be, for checkpoints.
        loop: With a controller to tell of what was learned, if there is one.
        saver: Keeps checkpoints.
        clock: Nanoseconds.

    Attributes:
        learned: Bins after which it learned.
        has_learned: Whether it did since the last bin.
    """

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        costs: Costs,
        save_ns: int,
        due: Callable[[], Due],
        loop: Loop | None,
        saver: Saver | None,
        clock: Callable[[], int],
    ):
        self._engine, self._journal, self._loop, self._saver = engine, journal, loop, saver
        self._due, self._clock, self._key = due, clock, engine.key
        learning = int(costs.learn * 1e9)
        self._learning = Budget([learning, int(costs.learn_p99 * 1e9)])
        self._tidying, self._saving, self._telling = (Budget([learning]) for _ in range(3))
        self._save_ns = save_ns
        self._saved_ns = self._tidied_ns = clock()
        self.learned, self.has_learned = 0, False

    def use(self, now: int, left: int, period: int, learns: bool) -> None:
        """Learn if it fits before the next bin; else, or after it, what else there is to do.

        Args:
            now: By the clock.
            left: Nanoseconds until the next bin; 0 or less if it waits already.
            period: Nanoseconds from one bin to the next; 0 if they come as fast as can be.
            learns: Whether the model is to be learned now.
        """
        wanted = learns and self._engine.due and not self.has_learned
        if wanted and left > 0 and self._learning.fits(left, now):
            self._learn(now)
        elif self._loop is not None and self._loop.has_news and self._telling.fits(left, now):
            self._loop.tell_controller()
            self._telling.spent(self._clock() - now)
        elif self._may(self._tidying, now - self._tidied_ns, TIDY_NS, left, period, now):
            gc.collect()
            self._tidied_ns = self._clock()
            self._tidying.spent(self._tidied_ns - now)
        elif (
            self._saver is not None
            and self._may(self._saving, now - self._saved_ns, self._save_ns, left, period, now)
            and self._saver.save(self._engine, self._journal.position, self._due())
        ):
            self._saved_ns = self._clock()
            self._saving.spent(self._saved_ns - now)

    def _learn(self, now: int) -> None:
        learned = self._engine.learn()
        self._learning.spent(self._clock() - now)
        kept = LearnRecord(self._engine.bins, learned, self._key)
        self._journal.append(Kind.LEARN, kept.encode())
        self.learned += 1
        self.has_learned = True

    def _may(
        self, budget: Budget, since: int, every: int, left: int, period: int, now: int
    ) -> bool:
        """Whether something that is to be done now and then may be done now."""
        if since <= every:
            return False
        return since > LATE * every or not period or (left > 0 and budget.fits(left, now))

    def save_soon(self) -> None:
        """Have a checkpoint saved as soon as the saver takes it."""
        self._saved_ns = -LATE * self._save_ns - 1

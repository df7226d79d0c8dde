"""Who was refused: counted always, logged within measure."""

import logging
import time
from collections import Counter
from collections.abc import Callable

from evkf.web.access import Why

LINES, EVERY_S = 10, 10.0
"""Lines of a kind in so many seconds: whoever is refused a thousand times a second fills no
disk, and hides nobody else."""


class Measured(logging.Handler):
    """Logs the first lines of every kind and stretch of time, and how many it left out.

    Args:
        log: Told a line.
        clock: Seconds.

    Example:
        >>> times = iter([0.0] * (LINES + 4) + [30.0])
        >>> lines = []
        >>> log = Measured(lines.append, lambda: next(times))
        >>> for number in range(LINES + 2):
        ...     log("often", f"line {number}")
        >>> log("seldom", "another"); log("often", "later")
        >>> lines[-4:]
        ['line 9', 'another', '2 lines of often were left out', 'later']
    """

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        super().__init__(logging.WARNING)
        self._log, self._clock, self._since = log, clock, clock()
        self._lines: Counter[str] = Counter()

    def __call__(self, kind: str, line: str) -> None:
        """Log a line, unless there were too many of its kind."""
        now = self._clock()
        if now - self._since >= EVERY_S:
            for each, num in self._lines.items():
                if num > LINES:
                    self._log(f"{num - LINES} lines of {each} were left out")
            self._since, self._lines = now, Counter()
        self._lines[kind] += 1
        if self._lines[kind] <= LINES:
            self._log(line)

    def emit(self, record: logging.LogRecord) -> None:
        """Log what a library has to say."""
        self(record.name, f"{record.levelname.lower()}: {self.format(record)}")


class Refusals:
    """Counts who was refused, and logs it.

    Args:
        log: Told a kind and a line; it should keep within measure.

    Example:
        >>> refusals = Refusals(lambda kind, line: print(line))
        >>> refusals.note(Why.TOKEN, "127.0.0.1", "a wrong token")
        refused 127.0.0.1 (token): a wrong token
        >>> refusals.counts
        Counter({<Why.TOKEN: 'token'>: 1})
    """

    def __init__(self, log: Callable[[str, str], None]):
        self.counts: Counter[Why] = Counter()
        self._log = log

    def note(self, why: Why, who: str, text: str) -> None:
        """Someone was refused."""
        self.counts[why] += 1
        self._log(why, f"refused {who} ({why}): {text}")

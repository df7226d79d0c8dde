"""Who was refused: counted always, logged within measure."""

import logging
import time
from collections import Counter
from collections.abc import Callable

from evkf.web.access import Why

LINES, EVERY_S = 20, 10.0
"""Lines of a log in so many seconds: whoever is refused a thousand times a second fills no disk."""


class Measured(logging.Handler):
    """Logs the first lines of every stretch of time, and how many it left out.

    Args:
        log: Told a line.
        clock: Seconds.

    Example:
        >>> times = iter([0.0, *[1.0] * LINES, 2.0, 3.0, 30.0])
        >>> lines = []
        >>> log = Measured(lines.append, lambda: next(times))
        >>> for number in range(LINES + 3):
        ...     log(f"line {number}")
        >>> lines[-3:]
        ['line 19', '2 lines were left out', 'line 22']
    """

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        super().__init__(logging.WARNING)
        self._log, self._clock = log, clock
        self._since, self._lines, self._quiet = clock(), 0, 0

    def __call__(self, line: str) -> None:
        """Log a line, unless there were too many."""
        now = self._clock()
        if now - self._since >= EVERY_S:
            if self._quiet:
                self._log(f"{self._quiet} lines were left out")
            self._since, self._lines, self._quiet = now, 0, 0
        if self._lines < LINES:
            self._lines += 1
            self._log(line)
        else:
            self._quiet += 1

    def emit(self, record: logging.LogRecord) -> None:
        """Log what a library has to say."""
        self(f"{record.levelname.lower()}: {self.format(record)}")


class Refusals:
    """Counts who was refused, and logs it.

    Args:
        log: Told a line; it should keep within measure.

    Example:
        >>> refusals = Refusals(print)
        >>> refusals.note(Why.TOKEN, "127.0.0.1", "a wrong token")
        refused 127.0.0.1 (token): a wrong token
        >>> refusals.counts
        Counter({<Why.TOKEN: 'token'>: 1})
    """

    def __init__(self, log: Callable[[str], None]):
        self.counts: Counter[Why] = Counter()
        self._log = log

    def note(self, why: Why, who: str, text: str) -> None:
        """Someone was refused."""
        self.counts[why] += 1
        self._log(f"refused {who} ({why}): {text}")

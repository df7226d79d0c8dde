"""What the web process knows of its session: the last report, and estimates as they come."""

import json
import time
from collections.abc import Callable
from typing import Any

from evkf.live.ports import Phase
from evkf.web.metrics import Figure, of_session
from evkf.web.packing import finite

STALE_S = 5.0
"""A session that has not reported for so long is not well; it does twice a second."""


class Shown:
    """What a session shows.

    Args:
        publish: Told every estimate, as it travels.
        tell: Told every report.
        reports: Whether there is a session that does; without one, all is well as long as this is
            asked.
        clock: Seconds.

    Attributes:
        report: The last, as `evkf.live.ports.Report.plain`; None before the first.
        estimates: How many have come.
        missed: Estimates published since the first report for which there was no room here.

    Example:
        >>> shown = Shown(lambda data: None)
        >>> shown.take(b'{"phase": "ready", "taken": 10, "elbo": NaN}')
        >>> shown.healthy, shown.plain["report"]
        (True, {'phase': 'ready', 'taken': 10, 'elbo': None})
    """

    def __init__(
        self,
        publish: Callable[[bytes], None],
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[dict[str, Any]], None] = lambda report: None,
        reports: bool = True,
    ):
        self._publish, self._clock, self._tell, self._reports = publish, clock, tell, reports
        self.report: dict[str, Any] | None = None
        self.estimates, self.missed = 0, 0
        self._heard, self._before = clock(), 0

    def take(self, data: bytes) -> None:
        """A message of the session: a report, or an estimate."""
        if data[:1] != b"{":
            self.estimates += 1
            self._publish(data)
            return
        report = json.loads(data)
        self._heard = self._clock()
        if self.report is None or self.report["phase"] == "starting":
            self._before = report["taken"] - self.estimates
        # Both come the same way, in order: what was taken before and did not come, never will.
        self.missed = report["taken"] - self.estimates - self._before
        self.report = report
        self._tell(report)

    @property
    def age(self) -> float | None:
        """Seconds since the last report; None where there is no session."""
        return self._clock() - self._heard if self._reports else None

    @property
    def _fresh(self) -> bool:
        return self._clock() - self._heard < STALE_S

    @property
    def healthy(self) -> bool:
        """Whether the session reports, and that all is well."""
        phase = None if self.report is None else self.report["phase"]
        return not self._reports or (phase == Phase.READY and self._fresh)

    @property
    def live(self) -> bool:
        """Whether the session goes on, as far as is known."""
        phase = Phase.STARTING if self.report is None else self.report["phase"]
        # While it compiles it does not report; were it to die, this process would be told.
        fresh = phase == Phase.STARTING or self._fresh
        return phase not in (Phase.CLOSED, Phase.FAILED) and fresh

    @property
    def closed(self) -> bool:
        """Whether the session said that it ended in good order."""
        return self.report is not None and self.report["phase"] == Phase.CLOSED

    @property
    def plain(self) -> dict[str, Any]:
        """For JSON, which has no number for what is not finite."""
        return {"report": finite(self.report), "age_s": self.age, "missed": self.missed}

    @property
    def figures(self) -> list[Figure]:
        """For metrics."""
        if self.age is None:
            return []
        found = [] if self.report is None else of_session(self.report)
        age = Figure("evkf_report_age_seconds", "gauge", "Since the last report.", [({}, self.age)])
        return [*found, age]

"""The web process of a session, as the session sees it: started, and started again if it dies."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evkf.data.files import need
from evkf.live.addresses import is_loopback
from evkf.live.desk import Desk
from evkf.live.machine import aside
from evkf.live.pipes import PipeSource, pair
from evkf.web.access import Place, Tls, check_tls, keep_token, listen
from evkf.web.reel import Screen
from evkf.web.settings import Settings

NEEDED = "fastapi", "uvicorn", "websockets", "bokeh"
LOG = "web.log"
"""Name of the file in the folder of a session."""

RESTARTS, WAIT_S = 3, 1.0
"""It is started again so often, and so long after its end; twice as long after every time."""

END_S = 8.0
"""Seconds that it has to end when the session does."""


class WebProcess:
    """The web process of a session, and what connects them.

    The socket that listens, and both ends of the pairs, stay open here: whatever becomes of the
    process, the session notices nothing, and the next takes up where it was.

    Args:
        place: Where to listen.
        folder: Of the session; the token and the log are kept there.
        hello: What describes the stream, for clients.
        takes_frames: Whether bins come this way.
        tls: Certificate and key.
        no_tls: Whether to do without, where others can reach it.
        log: Told when the process dies.
        room: Bytes that may wait for a client.
        screen: What the page shows, if there is one.

    Attributes:
        address: Where it is.
        token: File with the token.
        desk: The session's end for estimates, reports and actions.
        source: The session's end for frames; None if it takes none.
    """

    def __init__(
        self,
        place: Place,
        folder: Path,
        hello: Mapping[str, Any],
        takes_frames: bool = False,
        tls: Tls | None = None,
        no_tls: bool = False,
        log: Callable[[str], None] = print,
        room: int | None = None,
        screen: Screen | None = None,
    ):
        check_installed()
        check_tls(place, tls, no_tls)
        self.token = keep_token(folder)
        self._listener = listen(place)
        self.address = place.url(self._listener.getsockname()[1], encrypted=tls is not None)
        own, shown = pair()
        self.desk, self._ends = Desk(own), [self._listener, shown]
        self.source: PipeSource | None = None
        if takes_frames:
            own, frames = pair()
            self.source = PipeSource(own)
            self._ends.append(frames)
        self._settings = Settings(
            self._listener.fileno(),
            shown.fileno(),
            self._ends[2].fileno() if takes_frames else None,
            str(self.token),
            is_loopback(place.host),
            [] if is_loopback(place.host) else _names(place.host),
            tls,
            dict(hello),
            room,
            folder=None if screen is None else str(folder),
            screen=None if screen is None else screen._asdict(),
        )
        self._file, self._log = folder / LOG, log
        self._closing = threading.Event()
        self.process: subprocess.Popen | None = None
        self._thread = threading.Thread(target=self._run, name="evkf-web", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for attempt in range(RESTARTS + 1):
            try:
                code = self._serve()
            except OSError as error:
                code = f"not begun: {error}"
            # It ends by itself when the session has let go of its desk.
            if self._closing.is_set() or code == 0:
                return
            again = attempt < RESTARTS
            then = "it is started again" if again else "the session goes on without it"
            self._log(f"the web process has ended ({code}), see {self._file}; {then}")
            if not again or self._closing.wait(WAIT_S * 2**attempt):
                return

    def _serve(self) -> int:
        """Start it, and wait for its end."""
        command = [sys.executable, "-m", "evkf.web.serve"]
        # Priority is inherited: the web must never be in the way of the filter.
        with self._file.open("ab") as file, aside():
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=[end.fileno() for end in self._ends],
                # An interrupt of the terminal is the session's.
                start_new_session=True,
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(json.dumps(self._settings._asdict()).encode())
        return self.process.wait()

    def close(self) -> None:
        """Let it tell its clients the last, and end."""
        self._closing.set()
        self.desk.close()
        if self.source is not None:
            self.source.close()
        self._thread.join(timeout=END_S)
        if self._thread.is_alive() and self.process is not None:
            self.process.kill()
            self._thread.join(timeout=END_S)
        for end in self._ends:
            end.close()


def check_installed() -> None:
    """Refuse to go on without the packages that the web process needs."""
    need("the page", "web", *NEEDED)


def page_address(address: str, token: Path) -> str:
    """Where the page is, with the token where a browser sends it to nobody.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "token"
        ...     _ = path.write_text("secret")
        ...     page_address("http://127.0.0.1:8765", path)
        'http://127.0.0.1:8765/#token=secret'
    """
    return f"{address}/#token={token.read_text().strip()}"


def _names(host: str) -> list[str]:
    """Under which this machine is asked for from others."""
    return sorted({host, socket.gethostname(), socket.getfqdn()})

"""The page of a real session in a real browser: what the engine publishes, and what is asked of it.

One session serves all of these, in the order in which they stand here: it is killed at the end.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from evkf.live.answers import Estimate
from evkf.live.plan import CHECKPOINTS, JOURNAL
from evkf.live.records import Kind, Step, decode
from evkf.live.segments import Record, read
from tests.quick import quick_environment
from tests.web.browsing import (
    START_S,
    Page,
    Running,
    free_port,
    moving,
    opened,
    says,
    until,
    value,
    wait,
)

pytest.importorskip("bokeh", reason="bokeh is not installed: BokehJS comes with it")

CHANNELS, BIN_S = 8, 0.05
OPTIONS = ("--neurons", str(CHANNELS), "--bin-width", str(BIN_S), "--horizon", "5")
OPTIONS += ("--checkpoint-every", "1000", "--overload")
LEARNED = re.compile(r"\.raw|\.free\b(?!.*\.(low|high)$).*")
"""Names of parameters in a checkpoint; where states have been is none."""


class Session:
    """A session on the simulated rig, with what it published.

    Attributes:
        folder: Of the session.
        address: Of its page, with the token.
        published: Estimates by the number of their bin.
    """

    def __init__(self, folder: Path):
        self.folder, self._web = folder, f"127.0.0.1:{free_port()}"
        self.published: dict[int, Estimate] = {}
        self._run("live", *OPTIONS)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _run(self, command: str, *options: str) -> None:
        also = ("--web", self._web, "--no-real-time")
        environment = quick_environment()
        self._running = Running(command, str(self.folder), *options, *also, environment=environment)
        self.address = self._running.address()

    def _listen(self) -> None:
        place = f"ws://{self._web}/estimates"
        with suppress(ConnectionClosed), connect(place, open_timeout=START_S) as client:
            client.recv()
            while True:
                data = client.recv()
                assert isinstance(data, bytes)
                said = Estimate.decode(data)
                self.published[said.seq] = said

    def records(self) -> list[Record]:
        """All that the journal holds now."""
        return list(read(self.folder / JOURNAL))

    def said(self, ask: str) -> list[tuple[int, dict[str, Any]]]:
        """What was asked for, with the positions of the records."""
        found = [
            (record.position, decode(record.kind, record.payload))
            for record in self.records()
            if record.kind == Kind.ACTION
        ]
        return [(position, words) for position, words in found if words["ask"] == ask]

    def since(self, position: int, kind: Kind) -> int:
        """Records of a kind after a position."""
        return sum(each.kind == kind and each.position > position for each in self.records())

    def checkpoints(self) -> list[Path]:
        """All that there are."""
        return sorted((self.folder / CHECKPOINTS).glob("[0-9]*.safetensors"))

    def resume(self) -> None:
        """Take it up again after it was killed."""
        self._run("resume")

    def kill(self) -> None:
        """End the engine as the kernel would."""
        self._running.kill()

    def end(self) -> None:
        """End all of it."""
        self._running.end()
        self._thread.join()


@pytest.fixture(scope="module")
def session(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    found = Session(tmp_path_factory.mktemp("live") / "session")
    yield found
    found.end()


@pytest.fixture(scope="module")
def page(browser: Any, session: Session) -> Iterator[Page]:
    with opened(browser, session.address) as found:
        # Its address is told before anything is compiled.
        moving(found, START_S)
        yield found


def parameters(path: Path) -> dict[str, np.ndarray]:
    """What was learned, in a checkpoint: as it filters, and as the last gradient step left it."""
    found = {name: each for name, each in load_file(path).items() if LEARNED.fullmatch(name)}
    assert len(found) >= 2
    return found


def test_numbers_on_the_page_are_those_that_the_engine_published(page: Page, session: Session):
    names = ["bin", "time", "elbo", "mean-0", "mean-1"]
    read_all = "names => names.map(name => document.getElementById(name).dataset.value)"
    seen = set()
    for _ in range(3):
        seq, time, *shown = map(float, page.evaluate(read_all, names))
        said = wait(lambda seq=int(seq): session.published.get(seq))
        assert shown == [said.elbo, *said.mean]
        assert time == pytest.approx(seq * BIN_S)
        seen.add(seq)
        until(page, "before => Number(document.getElementById('bin').dataset.value) > before", seq)
    assert len(seen) == 3
    steps = [Step.decode(each.payload) for each in session.records() if each.kind == Kind.STEP]
    step = next(each for each in steps if each.seq == seq)
    assert (shown[0], shown[1:]) == (step.elbo, step.mean.astype(float).tolist())


def test_a_frozen_model_stays_as_it_is_until_it_is_thawed(page: Page, session: Session):
    until(page, "Number(document.getElementById('learned').dataset.value) > 0")
    page.click("#freeze")
    until(page, "document.getElementById('frozen').textContent === 'frozen'")
    [(frozen, _)] = session.said("freeze")
    kept = []
    for _ in range(2):
        there = set(session.checkpoints())
        page.click("#save")
        kept.append(parameters(wait(lambda there=there: set(session.checkpoints()) - there).pop()))
    wait(lambda: session.since(frozen, Kind.STEP) > 20)
    assert session.since(frozen, Kind.LEARN) == 0
    assert set(kept[0]) == set(kept[1])
    for name, before in kept[0].items():
        np.testing.assert_array_equal(kept[1][name], before)
    page.keyboard.press("f")
    until(page, "document.getElementById('frozen').textContent === 'learning'")
    [(thawed, _)] = session.said("thaw")
    wait(lambda: session.since(thawed, Kind.LEARN) > 2)
    there = set(session.checkpoints())
    page.click("#save")
    after = parameters(wait(lambda: set(session.checkpoints()) - there).pop())
    assert any((after[name] != before).any() for name, before in kept[1].items())


def test_an_event_that_is_typed_is_in_the_journal_with_its_bin(page: Page, session: Session):
    page.keyboard.press("m")
    page.keyboard.type("light on, é")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('event').textContent.includes('light on, é')")
    [(_, words)] = session.said("mark")
    assert words["text"] == "light on, é"
    assert value(page, "event") == str(words["seq"])
    assert words["seq"] in session.published or words["seq"] - 1 in session.published


def test_the_session_is_downloaded_as_nwb(page: Page, session: Session, tmp_path: Path):
    pynwb = pytest.importorskip("pynwb", reason="pynwb is not installed")
    with page.expect_download(timeout=1000 * START_S) as waiting:
        page.click("#nwb")
    file = tmp_path / "session.nwb"
    waiting.value.save_as(file)
    with pynwb.NWBHDF5IO(file, "r") as opened_file:
        found = opened_file.read()
        assert len(found.units) == CHANNELS
        [module] = found.processing.values()
        mean = np.asarray(module["latent_mean"].data)
    steps = [Step.decode(each.payload) for each in session.records() if each.kind == Kind.STEP]
    assert 20 < len(mean) <= len(steps)
    np.testing.assert_array_equal(mean, [step.mean for step in steps[: len(mean)]])
    assert not list(session.folder.glob(".download-*"))


@pytest.mark.parametrize(("name", "begins"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_the_view_is_downloaded(page: Page, tmp_path: Path, name: str, begins: bytes):
    with page.expect_download() as waiting:
        page.click(f"#{name}")
    waiting.value.save_as(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    assert data.startswith(begins)
    assert len(data) > 10_000


def test_an_engine_that_is_killed_is_told_of_and_the_page_goes_on_when_it_is_resumed(
    page: Page, session: Session
):
    session.kill()
    says(page, f"The engine has died. Go on with “evkf resume {session.folder}”.")
    page.wait_for_timeout(2000)
    # It does not forget why, though nobody answers now.
    says(page, "The engine has died.", seconds=0.1)
    before = float(value(page, "bin"))
    session.resume()
    says(page, "Live.", START_S)
    until(page, "before => Number(document.getElementById('bin').dataset.value) > before", before)
    moved = page.evaluate("evkf.paints[0]")
    until(page, "before => evkf.paints[0] > before + 3", moved)

"""What the page is shown: what the session published, and what its journal holds."""

import json
from pathlib import Path

import numpy as np
import pytest

from evkf.live.answers import Flags
from evkf.live.checkpoint import save
from evkf.live.desk import Action, Ask
from evkf.live.frames import Frame, encode
from evkf.live.journal import Journal
from evkf.live.plan import CHECKPOINTS, JOURNAL
from evkf.live.ports import Due, Phase
from evkf.live.records import Bin, Kind, Lost, Step, encode_words
from evkf.web.following import HOLD_S, Following
from evkf.web.packing import pack, unpack
from evkf.web.pages import older, read_question
from evkf.web.playing import AT_ONCE, QUIET_S, TELL_S, Playing
from evkf.web.reel import MOST, Reel, Screen, State
from evkf.web.rows import FEW, UNSEEN, seen
from tests.web.kit import estimate

SCREEN = Screen("a1b2", "rig", 0.01, 2, ("u7", "u9", "u11"), 1, True, True, ("mark",), 1.0)


class Clock:
    """Seconds that pass when told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def frame_of(seq: int) -> bytes:
    counts = np.random.default_rng(seq).integers(0, 9, 3).astype(np.uint8)
    return encode(Frame(seq, counts, np.array([True, seq % 5 > 0, True])))


def counts_of(seq: int) -> list[int]:
    frame = frame_of(seq)
    counts = np.frombuffer(frame, np.uint8, 3, 32).tolist()
    return [counts[0], counts[1] if seq % 5 else UNSEEN, counts[2]]


def step_of(seq: int) -> Step:
    said = estimate(seq)
    return Step(seq, 0, said.elbo, said.mean, np.abs(said.cov.diagonal()), 7)


def write(journal: Journal, seq: int) -> None:
    journal.append(Kind.BIN, Bin(seq, frame_of(seq)).encode())
    journal.append(Kind.STEP, step_of(seq).encode())


def settle(journal: Journal) -> None:
    assert journal.wait(journal.position, timeout=10) is not False


def test_messages_are_what_was_published_with_the_bins_of_the_journal(tmp_path: Path):
    feed, journal = Following(SCREEN, tmp_path), Journal.open(tmp_path, "process-crash")
    feed.wanted = True
    for seq in range(40):
        feed.take(estimate(seq).encode())
        write(journal, seq)
    journal.append(Kind.ACTION, encode_words(ask="mark", text="light on", seq=40))
    settle(journal)
    feed.turn()
    feed.reel.tell("report", {"phase": "ready", "elbo": float("nan")})
    message = feed.reel.message()
    assert message is not None
    header, arrays = unpack(message)
    published = [estimate(seq) for seq in range(40)]
    assert (header["kind"], header["first"], header["last"], header["skipped"]) == (
        "bins",
        0,
        39,
        0,
    )
    assert header["marks"] == [{"seq": 40, "text": "light on"}]
    assert header["report"] == {"phase": "ready", "elbo": None}
    for name in ("mean", "elbo", "flags"):
        np.testing.assert_array_equal(arrays[name], [getattr(each, name) for each in published])
    np.testing.assert_array_equal(arrays["var"], [each.cov.diagonal() for each in published])
    np.testing.assert_array_equal(arrays["rate"], np.float32([each.rate for each in published]))
    np.testing.assert_array_equal(arrays["latency"], np.float32([1e-6] * 40))
    for name in ("cov", "ahead", "ahead_var"):
        np.testing.assert_array_equal(arrays[name], getattr(published[-1], name))
    np.testing.assert_allclose(arrays["time"], 0.01 * np.arange(40), atol=1e-9)
    assert arrays["counts"].tolist() == [counts_of(seq) for seq in range(40)]
    assert feed.reel.message() is None
    _, again = unpack(feed.reel.recent())
    np.testing.assert_array_equal(again["mean"], arrays["mean"])
    journal.close()


def test_what_was_asked_for_while_nobody_looked_is_known(tmp_path: Path):
    feed, journal = Following(SCREEN, tmp_path), Journal.open(tmp_path, "process-crash")
    journal.append(Kind.ACTION, encode_words(ask="speed", text="5", seq=0))
    # Taken up again, it has the speed of its plan.
    journal.append(Kind.BEGIN, encode_words(plan={}))
    settle(journal)
    feed.begin()
    assert feed.speed == SCREEN.speed
    journal.append(Kind.ACTION, encode_words(ask="speed", text="2", seq=0))
    settle(journal)
    feed.begin()
    assert feed.speed == 2.0
    journal.close()


@pytest.mark.parametrize("looking", [False, True])
@pytest.mark.parametrize("kind", ["session", "its journal"])
def test_what_was_marked_is_forgotten_when_numbers_begin_anew(
    tmp_path: Path, kind: str, looking: bool
):
    ways = {"session": Following(SCREEN, tmp_path), "its journal": Playing(SCREEN, tmp_path, True)}
    feed = ways[kind]
    journal = Journal.open(tmp_path, "process-crash")

    def mark(seq: int, text: str) -> None:
        journal.append(Kind.ACTION, encode_words(ask="mark", text=text, seq=seq))

    def look() -> None:
        settle(journal)
        feed.turn() if looking else feed.begin()

    feed.begin()
    write(journal, 500)
    mark(501, "before")
    look()
    assert "before" in str(unpack(feed.reel.recent())[0]["marks"])
    journal.append(Kind.RESTART, encode_words(seq=0))
    write(journal, 0)
    mark(1, "after")
    look()
    for message in (feed.reel.message(), feed.reel.recent()):
        assert unpack(message or b"")[0]["marks"] == [{"seq": 1, "text": "after"}]
    journal.close()


def test_an_estimate_waits_for_its_bin_but_not_for_ever(tmp_path: Path):
    clock = Clock()
    feed = Following(SCREEN, tmp_path / "none", clock)
    feed.take(estimate(0).encode())
    feed.wanted = True
    feed.take(estimate(1)._replace(flags=Flags.BRIDGED).encode())
    feed.take(estimate(2).encode())
    feed.turn()
    assert unpack(feed.reel.message() or b"")[0]["last"] == 1
    clock.now += 2 * HOLD_S
    feed.turn()
    header, arrays = unpack(feed.reel.message() or b"")
    assert (header["first"], arrays["counts"].tolist()) == (2, [[UNSEEN] * 3])


def test_who_is_behind_is_shown_the_newest_and_told_how_many_are_left_out(tmp_path: Path):
    clock = Clock()
    feed = Following(SCREEN, tmp_path / "none", clock)
    feed.wanted = True
    for seq in range(MOST + 70):
        feed.take(estimate(seq).encode())
    clock.now += 2 * HOLD_S
    feed.turn()
    header, arrays = unpack(feed.reel.message() or b"")
    assert (header["skipped"], header["first"], len(arrays["time"])) == (70, 70, MOST)


def test_a_played_journal_keeps_its_pace_and_ends_at_its_last_bin(tmp_path: Path):
    journal = Journal.open(tmp_path, "process-crash")
    journal.append(Kind.PHASE, encode_words(phase="ready", why="waiting"))
    for seq in range(30):
        write(journal, seq)
        if seq == 20:
            journal.append(Kind.ACTION, encode_words(ask="mark", text="tone", seq=21))
            journal.append(Kind.LOST, Lost(21, 1).encode())
            journal.append(Kind.STEP, step_of(21).encode())
    journal.append(Kind.END, encode_words(lost=1))
    journal.close()
    clock = Clock()
    feed = Playing(SCREEN, tmp_path, clock=clock)
    feed.begin()
    clock.now += 0.105
    feed.turn()
    header, arrays = unpack(feed.reel.message() or b"")
    assert (header["first"], header["last"], header["report"]["phase"]) == (0, 9, "ready")
    np.testing.assert_array_equal(arrays["mean"], [step_of(seq).mean for seq in range(10)])
    np.testing.assert_array_equal(arrays["cov"], np.diag(step_of(9).var))
    assert arrays["counts"].tolist() == [counts_of(seq) for seq in range(10)]
    assert np.isnan(arrays["latency"]).all()
    assert (arrays["rate"].shape, arrays["ahead"].shape) == ((0, 3), (0, 2))
    assert feed.ask(Action(Ask.FREEZE)) != ""
    assert feed.ask(Action(Ask.SPEED, "4")) == ""
    clock.now += 10.0
    for _ in range(5):
        feed.turn()
        clock.now += 0.5
    header, arrays = unpack(feed.reel.message() or b"")
    assert (header["last"], len(arrays["time"])) == (29, 21)
    assert header["marks"] == [{"seq": 21, "text": "tone"}]
    assert feed.ended
    assert header["report"]["phase"] == Phase.CLOSED
    assert (header["report"]["bins"], header["report"]["counters"]["lost"]) == (31, 1)
    assert arrays["flags"].tolist().count(Flags.BRIDGED) == 1
    assert feed.ask(Action(Ask.RESET)) == ""
    clock.now += 0.025
    feed.turn()
    header, arrays = unpack(feed.reel.message() or b"")
    assert (header["first"], arrays["time"][0]) == (0, 0.0)


def test_a_journal_that_grows_is_shown_from_its_newest_bin_on(tmp_path: Path):
    journal = Journal.open(tmp_path, "process-crash")
    for seq in range(10):
        write(journal, seq)
    settle(journal)
    feed = Playing(SCREEN, tmp_path, grows=True)
    feed.begin()
    for seq in range(10, 15):
        write(journal, seq)
    settle(journal)
    feed.turn()
    header, arrays = unpack(feed.reel.message() or b"")
    assert (header["first"], header["last"], header["report"]["phase"]) == (10, 14, "ready")
    np.testing.assert_array_equal(arrays["elbo"], [step_of(seq).elbo for seq in range(10, 15)])
    journal.close()


def test_a_journal_that_grows_tells_of_freezing_death_and_return(tmp_path: Path):
    clock = Clock()
    folder = tmp_path / JOURNAL
    journal = Journal.open(folder, "process-crash")
    journal.append(Kind.PHASE, encode_words(phase="ready", why="waiting for bins"))
    journal.append(Kind.ACTION, encode_words(ask="freeze", text="", seq=0))
    write(journal, 0)
    settle(journal)
    feed = Playing(SCREEN, folder, grows=True, clock=clock)
    feed.begin()

    def told() -> dict:
        clock.now += 1.1 * max(QUIET_S, TELL_S)
        feed.turn()
        return unpack(feed.reel.message() or b"")[0]["report"]

    assert told()["frozen"] is True
    journal.append(Kind.ACTION, encode_words(ask="thaw", text="", seq=1))
    settle(journal)
    assert (told()["frozen"], feed.live) == (False, True)
    told()
    assert feed.live
    journal.close()
    assert (told()["phase"], feed.live) == ("ready", False)
    journal = Journal.open(folder, "process-crash")
    journal.append(Kind.PHASE, encode_words(phase="ready", why="waiting for bins"))
    settle(journal)
    told()
    assert feed.live
    journal.append(Kind.PHASE, encode_words(phase="closed", why="the stream ended"))
    journal.close()
    assert told()["phase"] == "closed"


def test_a_freeze_of_long_ago_is_known_from_the_checkpoint(tmp_path: Path):
    folder = tmp_path / JOURNAL
    journal = Journal.open(folder, "process-crash")
    due = json.dumps(Due(7, frozen=True))
    save(tmp_path / CHECKPOINTS, 7, {"mean": np.ones(2)}, {"position": "0", "due": due})
    feed = Playing(SCREEN, folder, grows=True)
    feed.begin()
    feed.turn()
    assert unpack(feed.reel.message() or b"")[0]["report"]["frozen"] is True
    journal.close()


@pytest.mark.parametrize("speed", ["1", "100"])
def test_no_turn_takes_long_at_whatever_speed(tmp_path: Path, speed: str):
    journal = Journal.open(tmp_path, "process-crash")
    for seq in range(3 * AT_ONCE):
        write(journal, seq)
    journal.close()
    clock = Clock()
    feed = Playing(SCREEN._replace(bin_width=0.0001), tmp_path, clock=clock)
    feed.begin()
    assert feed.ask(Action(Ask.SPEED, speed)) == ""
    clock.now += 10.0
    feed.turn()
    header, arrays = unpack(feed.reel.message() or b"")
    assert (header["last"], header["skipped"]) == (AT_ONCE - 1, AT_ONCE - MOST)
    assert len(arrays["time"]) == MOST


def test_what_is_old_is_not_shown_as_recent_and_time_has_gone_on(tmp_path: Path):
    feed = Following(SCREEN, tmp_path / "none", Clock())
    feed.wanted = True

    def take(seq: int) -> None:
        feed.take(estimate(seq)._replace(flags=Flags.BRIDGED).encode())

    for seq in (0, 1, 2):
        take(seq)
    feed.turn()
    assert len(unpack(feed.reel.message() or b"")[1]["time"]) == 3
    feed.wanted = False
    feed.rest()
    assert len(unpack(feed.reel.recent())[1]["time"]) == 0
    for seq in range(3, 5000):
        take(seq)
    # The source begins anew while nobody looks.
    for seq in (0, 1):
        take(seq)
    feed.wanted = True
    feed.begin()
    take(2)
    feed.turn()
    _, arrays = unpack(feed.reel.message() or b"")
    np.testing.assert_allclose(arrays["time"], [50.02], atol=1e-9)


def test_a_field_that_was_kept_is_older_when_it_is_told_again():
    data = pack({"kind": "field", "seconds_old": 2.5}, {"x": np.arange(3.0)})
    header, arrays = unpack(older(data, 10.0))
    assert (header["seconds_old"], arrays["x"].tolist()) == (12.5, [0, 1, 2])


def test_numbers_that_begin_anew_do_not_turn_time_back():
    reel = Reel(SCREEN)
    times = [reel.time(seq) for seq in (0, 1, 4, 0, 1, 10**9, 10**9 + 1)]
    np.testing.assert_allclose(times, [0, 0.01, 0.04, 0.05, 0.06, 0.07, 0.08], atol=1e-6)


def test_signals_are_scaled_and_what_is_masked_may_be_anything():
    y, mask = np.array([0.0, 1.0, -9.0, np.nan]), np.array([True, True, True, False])
    assert seen(encode(Frame(0, y, mask)), counts=False).tolist() == [127, 159, 0, UNSEEN]


def test_many_channels_have_the_rates_of_the_last_bin_alone(tmp_path: Path):
    num = FEW + 1
    feed = Following(SCREEN._replace(units=("u",) * num), tmp_path / "none", Clock())
    feed.wanted = True
    for seq in range(3):
        feed.take(estimate(seq, num)._replace(flags=Flags.BRIDGED).encode())
    feed.turn()
    _, arrays = unpack(feed.reel.message() or b"")
    assert (arrays["counts"].shape, arrays["rate"].shape) == ((3, num), (1, num))
    np.testing.assert_array_equal(arrays["rate"][0], np.float32(estimate(2, num).rate))


def test_arrays_begin_where_a_browser_can_look_at_them():
    data = pack({"kind": "é"}, {"a": np.zeros(3, "u1"), "b": np.ones(2), "c": np.zeros((0, 2))})
    length = int.from_bytes(data[:4], "little")
    assert (4 + length) % 8 == 0
    assert len(data) == 4 + length + 8 + 16
    assert unpack(data)[1]["b"].tolist() == [1, 1]


def test_the_greeting_says_what_can_be_done():
    said = json.loads(SCREEN.hello(State(False, "gone", 2.0)))
    assert (said["latents"], said["channels"], said["labels"]) == (2, 3, ["z0", "z1"])
    assert (said["live"], said["why"], said["speed"], said["can"]) == (False, "gone", 2.0, ["mark"])
    assert Screen.read(json.loads(json.dumps(SCREEN._asdict()))) == SCREEN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "{" * 10,
        '{"other": 1}',
        '{"plane": [0]}',
        '{"plane": [0, 2]}',
        '{"plane": [true, 0]}',
        '{"plane": [0, 1], "at": [1, 2]}',
    ],
)
def test_what_is_no_question_is_refused(text: str):
    with pytest.raises((ValueError, TypeError)):
        read_question(text, 2)

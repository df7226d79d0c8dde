"""A journal that is read while it is written."""

from pathlib import Path

import pytest

from evkf.live.follow import Follower
from evkf.live.journal import Journal, is_written
from evkf.live.segments import frame, frame_header, frame_hole, read, segment_path


def test_what_is_followed_is_what_was_written_over_many_segments(tmp_path: Path):
    folder, follower, found = tmp_path / "journal", Follower(tmp_path / "journal"), []
    assert follower.read() == []
    journal = Journal.open(folder, "process-crash", segment_bytes=2000)
    for number in range(200):
        journal.append(8 + number % 5, bytes([number]) * (number % 60))
        if number % 7 == 0:
            journal.wait(journal.position, timeout=10)
            found += follower.read()
    assert is_written(folder)
    journal.close()
    assert not is_written(folder)
    while more := follower.read(most=500):
        found += more
    assert len(list(folder.glob("*.journal"))) > 3
    assert found == list(read(folder))
    assert len(found) == 200
    follower.rewind()
    assert follower.read() == found[: len(follower_first(folder))]


def follower_first(folder: Path) -> list:
    """Records of the first segment."""
    second = next(iter(sorted(folder.glob("*.journal"))[1:]))
    first = int.from_bytes(second.read_bytes()[13:21], "little")
    return [record for record in read(folder) if record.position < first]


def test_one_who_skips_goes_on_from_the_newest(tmp_path: Path):
    folder, follower = tmp_path / "journal", Follower(tmp_path / "journal")
    journal = Journal.open(folder, "process-crash", segment_bytes=2000)
    for number in range(100):
        journal.append(8, bytes([number]) * 50)
    journal.wait(journal.position, timeout=10)
    assert follower.behind > 0
    follower.skip()
    assert (follower.behind, follower.read()) == (0, [])
    journal.append(9, b"new")
    journal.wait(journal.position, timeout=10)
    assert [(record.position, record.payload) for record in follower.read()] == [(100, b"new")]
    journal.close()


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_a_torn_end_is_waited_for(tmp_path: Path, cut: int):
    path, follower = segment_path(tmp_path, 0), Follower(tmp_path)
    whole = frame_header(0, bytes(16)) + frame(8, b"a") + frame(8, b"bcdef")
    path.write_bytes(whole[:-cut])
    assert [record.payload for record in follower.read()] == [b"a"]
    path.write_bytes(whole)
    assert [record.payload for record in follower.read()] == [b"bcdef"]


def test_what_is_written_again_is_told_once_and_holes_are_counted(tmp_path: Path):
    first = frame_header(0, bytes(16)) + frame(8, b"a") + frame(8, b"b")
    again = frame_header(1, bytes(16)) + frame(8, b"b") + frame_hole(range(2, 5)) + frame(8, b"f")
    segment_path(tmp_path, 0).write_bytes(first)
    follower = Follower(tmp_path)
    assert [record.position for record in follower.read()] == [0, 1]
    segment_path(tmp_path, 1).write_bytes(again)
    assert [(record.position, record.payload) for record in follower.read()] == [(5, b"f")]


def test_a_record_larger_than_what_is_read_at_a_time_is_read(tmp_path: Path):
    path, follower = segment_path(tmp_path, 0), Follower(tmp_path)
    large = frame(8, bytes(5000))
    path.write_bytes(frame_header(0, bytes(16)) + frame(8, b"a") + large[:-1])
    assert [len(record.payload) for record in follower.read(most=100)] == [1]
    assert follower.read(most=100) == []
    path.write_bytes(frame_header(0, bytes(16)) + frame(8, b"a") + large + frame(8, b"b"))
    assert [len(record.payload) for record in follower.read(most=100)] == [5000]
    assert [record.payload for record in follower.read(most=100)] == [b"b"]


def test_what_is_written_between_a_look_and_the_next_segment_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first, second = (segment_path(tmp_path, number) for number in (0, 1))
    first.write_bytes(frame_header(0, bytes(16)) + frame(8, b"a"))
    follower = Follower(tmp_path)
    assert [record.payload for record in follower.read()] == [b"a"]
    load = follower._load

    def late(most: int) -> bytes:
        # The writer ends the segment and begins another just after this one was looked at.
        data = load(most)
        monkeypatch.setattr(follower, "_load", load)
        with first.open("ab") as file:
            file.write(frame(8, b"b"))
        second.write_bytes(frame_header(2, bytes(16)) + frame(8, b"c"))
        return data

    monkeypatch.setattr(follower, "_load", late)
    found = follower.read() + follower.read() + follower.read()
    assert [(record.position, record.payload) for record in found] == [(1, b"b"), (2, b"c")]


def test_one_who_skips_is_told_what_it_asks_for(tmp_path: Path):
    path, follower = segment_path(tmp_path, 0), Follower(tmp_path)
    path.write_bytes(frame_header(0, bytes(16)) + frame(8, b"a") + frame(9, b"b") + frame(8, b"c"))
    assert [record.payload for record in follower.skip(kinds=(9,))] == [b"b"]
    assert follower.read() == []

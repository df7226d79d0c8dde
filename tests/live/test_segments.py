"""Records come back exactly, up to where a write was torn, and damage is never read as data."""

import itertools
import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evkf.live.disk import Disk
from evkf.live.segments import (
    HEADER_BYTES,
    HOLE,
    JournalError,
    Record,
    frame,
    frame_header,
    frame_hole,
    hole,
    read,
    recover,
    segment_path,
    walk,
)

SESSION = bytes(range(16))


def records(num, longest=5, seed=0):
    """Kinds and payloads, many of them of zeros or like one another."""
    rng = np.random.default_rng(seed)
    kinds, sizes = rng.integers(8, 256, num), rng.integers(0, longest, num)
    return [
        (int(kind), rng.integers(0, 3, size, np.uint8).tobytes())
        for kind, size in zip(kinds, sizes, strict=True)
    ]


def put(folder, number, first, items, session=SESSION, more=b""):
    """Write a segment; where its frames end."""
    frames = [frame_header(first, session), *(frame(*item) for item in items)]
    segment_path(folder, number).write_bytes(b"".join(frames) + more)
    return np.cumsum([len(data) for data in frames]).tolist()


def numbered(items, first=0):
    return [Record(first + i, *item) for i, item in enumerate(items)]


def test_frame_is_what_the_format_says():
    data = frame(9, b"abc")
    assert data == struct.pack("<IIB", 3, zlib.crc32(b"\x09abc"), 9) + b"abc"
    header = struct.pack("<IQ16s", 1, 70, SESSION)
    assert frame_header(70, SESSION) == frame(1, header)
    assert len(frame_header(70, SESSION)) == HEADER_BYTES
    assert frame_hole(range(3, 8)) == frame(2, struct.pack("<QQ", 3, 5))


def test_a_file_cut_at_every_byte_gives_the_exact_prefix(tmp_path):
    items = records(1000)
    ends = put(tmp_path, 0, 0, items)
    whole = segment_path(tmp_path, 0).read_bytes()
    wanted = [(end, *item) for end, item in zip(ends[1:], items, strict=True)]
    for size in range(len(whole) + 1):
        num = int(np.searchsorted(ends, size, "right")) - 1
        found = list(walk(whole[:size]))[1:]
        assert len(found) == max(num, 0)
        assert found[-1:] == wanted[num - 1 : num] if num > 0 else not found
    assert list(walk(whole))[1:] == wanted


def test_a_folder_cut_at_every_byte_gives_the_exact_prefix(tmp_path):
    first, last = records(20, seed=1), records(40, seed=2)
    put(tmp_path, 0, 0, first)
    ends = put(tmp_path, 1, 20, last)
    path = segment_path(tmp_path, 1)
    for size in reversed(range(ends[-1] + 1)):
        os.truncate(path, size)
        num = max(int(np.searchsorted(ends, size, "right")) - 1, 0)
        assert list(read(tmp_path)) == numbered([*first, *last[:num]])


@pytest.mark.parametrize("sync", [False, True])
def test_recovery_cuts_exactly_what_is_torn(tmp_path, sync):
    items = records(300, seed=3)
    ends = put(tmp_path, 0, 0, items)
    path = segment_path(tmp_path, 0)
    whole = path.read_bytes()
    for size in np.random.default_rng(3).integers(0, len(whole) + 1, 25):
        path.write_bytes(whole[:size])
        num = max(int(np.searchsorted(ends, size, "right")) - 1, 0)
        found = recover(tmp_path, Disk(), sync)
        assert found.position == num
        if size < HEADER_BYTES:
            assert found.length == 0
            assert not path.exists()
        else:
            assert found.session == SESSION
            assert path.read_bytes() == whole[: ends[num]]
            assert found.length == ends[num]


def test_a_flipped_bit_is_never_read_as_a_record(tmp_path):
    parts = [records(15, 12, seed) for seed in range(3)]
    ends = [put(tmp_path, i, 15 * i, part) for i, part in enumerate(parts)]
    wanted = numbered(itertools.chain(*parts))
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(3):
        path = segment_path(tmp_path, number)
        whole = path.read_bytes()
        for place in rng.choice(8 * len(whole), 120, replace=False):
            bad = bytearray(whole)
            bad[place // 8] ^= 1 << place % 8
            path.write_bytes(bad)
            at = int(np.searchsorted(ends[number], place // 8, "right"))
            begin = [0, *ends[number]][at]
            if number == 2 and at == 15:
                assert list(read(tmp_path)) == wanted[:-1]
                continue
            with pytest.raises(JournalError) as caught:
                list(read(tmp_path))
            assert (caught.value.path, caught.value.byte) == (path, begin)
            assert f"{path}, byte {begin}" in str(caught.value)
            refused += 1
        path.write_bytes(whole)
    assert refused > 300
    assert list(read(tmp_path)) == wanted


def test_what_precedes_the_damage_is_read_all_the_same(tmp_path):
    items = records(30, 12)
    ends = put(tmp_path, 0, 0, items)
    path = segment_path(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[ends[20] + 5] ^= 1
    path.write_bytes(data)
    reading = read(tmp_path)
    assert list(itertools.islice(reading, 20)) == numbered(items[:20])
    with pytest.raises(JournalError):
        next(reading)


@given(
    st.lists(st.tuples(st.integers(8, 255), st.binary(max_size=40)), max_size=12),
    st.integers(0, 200),
)
@settings(max_examples=40, deadline=None)
def test_any_payload_comes_back(items, cut):
    data = b"".join(frame(*item) for item in items)
    ends = np.cumsum([len(frame(*item)) for item in items])
    size = max(len(data) - cut, 0)
    found = [(kind, payload) for _, kind, payload in walk(data[:size])]
    assert found == items[: int(np.searchsorted(ends, size, "right"))]


@pytest.mark.parametrize("more", [bytes(5000), b"\xff" * 5000, b"\x08\0\0\0" * 2000])
def test_a_tail_of_anything_but_frames_is_torn(tmp_path, more):
    items = records(5)
    put(tmp_path, 0, 0, items, more=more)
    assert list(read(tmp_path)) == numbered(items)


def test_a_long_torn_tail_of_sparse_counts_is_given_up_in_good_time(tmp_path):
    counts = np.random.default_rng(0).poisson(0.1, 3_000_000).astype(np.uint8).tobytes()
    put(tmp_path, 0, 0, [], more=struct.pack("<IIB", 1 << 30, 0, 9) + counts)
    assert list(read(tmp_path)) == []


def test_the_next_segment_counts_where_two_have_a_record(tmp_path):
    items = records(12, 9)
    put(tmp_path, 0, 0, items[:8], more=frame(9, b"never synced")[:-3])
    put(tmp_path, 1, 6, items[6:])
    assert list(read(tmp_path)) == numbered(items)
    put(tmp_path, 0, 0, [*items[:6], (99, b"old")])
    assert list(read(tmp_path)) == numbered(items)


def test_a_segment_that_was_only_begun_does_not_count(tmp_path):
    items = records(12, 9)
    put(tmp_path, 0, 0, items, more=b"torn")
    for begun in (b"", frame_header(12, SESSION)[:-1]):
        segment_path(tmp_path, 1).write_bytes(begun)
        segment_path(tmp_path, 2).write_bytes(b"")
        assert list(read(tmp_path)) == numbered(items)
        found = recover(tmp_path, Disk(), sync=False)
        assert found[:2] == (SESSION, 12)
        assert [path.name for path in tmp_path.iterdir()] == ["000000000000.journal"]


def test_holes_take_positions(tmp_path):
    lost = range(2, 9)
    data = [frame_header(0, SESSION), frame(9, b"a"), frame(9, b"b"), frame_hole(lost)]
    segment_path(tmp_path, 0).write_bytes(b"".join(data))
    put(tmp_path, 1, 9, [(9, b"c")])
    found = list(read(tmp_path))
    assert [record.position for record in found] == [0, 1, 2, 9]
    assert found[2].kind == HOLE
    assert hole(found[2]) == lost
    # Where it ends is found without looking into all that a long session wrote.
    assert recover(tmp_path, Disk(), sync=True)[1:3] == (10, [])
    with segment_path(tmp_path, 1).open("ab") as file:
        file.write(frame_hole(range(10, 12)))
    assert recover(tmp_path, Disk(), sync=True)[1:3] == (12, [range(10, 12)])


@pytest.mark.parametrize(
    ("what", "number", "data"),
    [
        ("segment 1 is missing", 2, frame_header(1, SESSION)),
        ("another session", 1, frame_header(1, bytes(16))),
        ("no header", 1, frame(9, bytes(28))),
        ("format 7", 1, frame(1, struct.pack("<IQ16s", 7, 1, SESSION))),
        ("second header", 1, 2 * frame_header(1, SESSION)),
        ("hole of other", 1, frame_header(1, SESSION) + frame_hole(range(5, 6))),
        ("hole of other", 1, frame_header(1, SESSION) + frame(2, b"short")),
    ],
)
def test_what_cannot_be_a_journal_is_refused(tmp_path, what, number, data):
    put(tmp_path, 0, 0, [(9, b"a")])
    segment_path(tmp_path, number).write_bytes(data)
    with pytest.raises(JournalError, match=what) as caught:
        list(read(tmp_path))
    assert caught.value.path == segment_path(tmp_path, number)


@pytest.mark.parametrize("first", [0, 2])
def test_a_segment_without_the_records_that_are_due_is_refused(tmp_path, first):
    put(tmp_path, 0, 1, [])
    put(tmp_path, 1, first, [(9, b"a")])
    with pytest.raises(JournalError, match="where record 1 is due"):
        list(read(tmp_path))


def test_a_journal_may_lack_its_first_segments(tmp_path):
    items = records(6)
    put(tmp_path, 4, 100, items)
    (tmp_path / "notes.txt").write_text("not a segment")
    assert list(read(tmp_path)) == numbered(items, 100)


def test_reading_begins_where_it_is_told_to(tmp_path):
    items = records(30, 9)
    put(tmp_path, 0, 0, items[:8])
    put(tmp_path, 1, 8, items[8:20])
    put(tmp_path, 2, 20, items[20:], more=frame_hole(range(30, 40)) + frame(9, b"z"))
    everything = list(read(tmp_path))
    for first in range(42):
        begin = first if first <= 30 else 30 + (first >= 40) + (first > 40)
        assert list(read(tmp_path, first=first)) == everything[begin:]
    segment_path(tmp_path, 0).write_bytes(frame_header(0, SESSION) + b"damaged")
    assert list(read(tmp_path, first=8)) == everything[8:]
    with pytest.raises(JournalError):
        list(read(tmp_path, first=7))

"""Frames come out as they went in, or are refused with the right code."""

import pickle
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from bad_frames import SMALL, expected, message, named, sealed
from hypothesis import given, settings
from hypothesis import strategies as st
from live_fuzz import fuzz, same

from evkf.errors import InputError
from evkf.live import frames
from evkf.live.frames import Code, Decoder, End, Frame, FrameError, encode, encode_end

CASES = named()
TYPES = [np.uint8, np.uint16, np.int32, np.float32, np.float64]


@st.composite
def sent(draw: st.DrawFn) -> tuple[Frame, type]:
    """A frame of counts and the type it travels in."""
    size = draw(st.integers(1, 40))
    y = np.array(draw(st.lists(st.integers(0, 255), min_size=size, max_size=size)))
    bits = draw(st.none() | st.lists(st.booleans(), min_size=size, max_size=size))
    u = draw(st.none() | st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3))
    seq, sent_ns = draw(st.integers(0, 2**62)), draw(st.integers(-(2**63), 2**63 - 1))
    arrays = None if bits is None else np.array(bits), None if u is None else np.array(u)
    return Frame(seq, y, *arrays, draw(st.booleans()), sent_ns), draw(st.sampled_from(TYPES))


@settings(max_examples=100, deadline=None)
@given(sent(), st.sampled_from([np.float32, np.float64]))
def test_what_goes_in_comes_out(case, dtype):
    frame, wire = case
    num_inputs = 0 if frame.u is None else len(frame.u)
    out = Decoder(len(frame.y), num_inputs, dtype=dtype).decode(encode(frame, wire))
    assert isinstance(out, Frame)
    assert out.y.dtype == dtype
    y = frame.y if frame.mask is None else frame.y * frame.mask
    u = None if frame.u is None else frame.u.astype(dtype)
    assert same(out, frame._replace(y=y.astype(dtype), u=u))


@pytest.mark.parametrize("name", CASES)
def test_bad_frames_by_name(name):
    data, code, seq = CASES[name]
    with pytest.raises(FrameError) as caught:
        Decoder(*SMALL).decode(data)
    assert (caught.value.code, caught.value.seq) == (code, seq)
    assert code in str(caught.value)
    if isinstance(data, bytes):
        assert expected(SMALL, data) == (code, seq)


def test_there_is_a_case_for_every_code():
    assert {code for _, code, _ in CASES.values()} == set(Code) - {Code.BAD_TEXT}
    assert len(CASES) >= 30


def test_mutated_frames_are_read_right_or_refused():
    result = fuzz(3000, seed=1)
    assert (result["wrong"], result["forged"]) == (0, 0)
    assert result["codes"]["taken"] > 100


def test_without_the_checksum_damage_would_pass(monkeypatch):
    monkeypatch.setattr(frames, "sound", lambda view: True)
    assert fuzz(1000, seed=1)["forged"] > 0


def test_no_single_bit_can_turn():
    decoder, good = Decoder(*SMALL), message()
    for at in range(8 * len(good)):
        data = bytearray(good)
        data[at // 8] ^= 1 << at % 8
        with pytest.raises(FrameError) as caught:
            decoder.decode(data)
        assert caught.value.seq is None


@pytest.mark.parametrize("wire", [4, 5])
@pytest.mark.parametrize("counts", [True, False])
def test_masked_values_may_be_anything(wire, counts):
    values = np.array([1, np.nan, np.inf, -3, 0.5, 1e30, 2, 7], f"<f{8 if wire == 5 else 4}")
    mask = np.array([1, 0, 0, 0, 0, 0, 1, 0], bool)
    head = struct.pack("<4sBBBBQqII", b"eVKF", 1, 1, wire, 2, 7, 0, 8, 0)
    data = sealed(head + values.tobytes() + b"\x41")
    out = Decoder(8, counts=counts).decode(data)
    assert isinstance(out, Frame)
    assert out.y.tolist() == [1, 0, 0, 0, 0, 0, 2, 0]
    assert out.mask is not None
    assert out.mask.tolist() == mask.tolist()
    again = encode(Frame(7, values, mask))
    assert Decoder(8, counts=counts).decode(again)[1].tolist() == out.y.tolist()


def test_counts_that_float32_cannot_hold_are_refused():
    exact = Decoder(1, dtype=np.float32)
    assert exact.decode(encode(Frame(0, np.array([2**24 + 2], np.int32))))[1].tolist() == [
        2**24 + 2
    ]
    for dtype in (np.int32, np.float64):
        data = encode(Frame(3, np.array([2**24 + 1], dtype)))
        assert Decoder(1).decode(data)[1].tolist() == [2**24 + 1]
        assert Decoder(1, counts=False, dtype=np.float32).decode(data)[1].tolist() == [2**24]
        with pytest.raises(FrameError, match="channel 0 is 16777217") as caught:
            exact.decode(data)
        assert (caught.value.code, caught.value.seq) == (Code.TOO_LARGE, 3)


def test_signals_may_be_negative_and_are_rounded():
    y = np.array([-0.1, 1 / 3, 2.0**62])
    for dtype in (np.float32, np.float64):
        out = Decoder(3, counts=False, dtype=dtype).decode(encode(Frame(0, y)))
        assert out[1].tolist() == y.astype(dtype).tolist()
    negative = encode(Frame(0, np.array([-7], np.int32)))
    assert Decoder(1, counts=False).decode(negative)[1].tolist() == [-7]
    with pytest.raises(FrameError, match="too_large"):
        Decoder(13, 2, counts=False).decode(message({4: -1e19}, 5))


def test_zeros_have_no_sign():
    out = Decoder(2).decode(encode(Frame(0, np.array([-0.0, 1.0]))))
    assert not np.signbit(out[1]).any()


def test_end_of_a_stream():
    assert Decoder(3, 2).decode(encode_end(2**62)) == End(2**62)
    assert Decoder(200).decode(encode_end(0)) == End(0)


def test_frames_own_their_arrays():
    buffer = bytearray(encode(Frame(0, np.ones(4), u=np.ones(1))))
    out = Decoder(4, 1).decode(memoryview(buffer))
    buffer[32:] = bytes(len(buffer) - 32)
    assert out[1].tolist() == [1, 1, 1, 1]
    assert isinstance(out, Frame)
    assert out.u is not None
    assert out.u.tolist() == [1]
    out.y[0] = 5


def test_other_buffers_are_read_as_bytes():
    data = encode(Frame(3, np.ones(4, np.uint8)))
    for other in (bytearray(data), np.frombuffer(data, np.uint8), np.frombuffer(data, "<i4")):
        assert Decoder(4).decode(other).seq == 3


@pytest.mark.parametrize(
    ("y", "code"),
    [([0, 255], 1), ([256], 2), ([-1], 3), ([2**40], 4), ([2**40 + 1], 5), ([True], 1)],
)
def test_whole_numbers_travel_in_the_first_type_that_holds_them(y, code):
    data = encode(Frame(0, np.array(y)))
    assert data[6] == code
    assert Decoder(len(y), counts=False).decode(data)[1].tolist() == y


@pytest.mark.parametrize(
    ("frame", "dtype", "where"),
    [
        (Frame(0, np.ones((2, 2))), None, "y"),
        (Frame(0, np.ones(0)), None, "y"),
        (Frame(0, np.array(["a"])), None, "y"),
        (Frame(0, np.array([1, np.nan])), None, r"y\[1\]"),
        (Frame(0, np.array([1e19])), None, r"y\[0\]"),
        (Frame(0, np.array([256])), np.uint8, "y"),
        (Frame(0, np.array([0.5])), np.int32, "y"),
        (Frame(0, np.array([-1.0])), np.uint16, "y"),
        (Frame(0, np.array([2**53 + 1])), None, "y"),
        (Frame(0, np.array([1])), np.int64, "dtype"),
        (Frame(0, np.ones(2), np.ones(2)), None, "mask"),
        (Frame(0, np.ones(2), np.ones(3, bool)), None, "mask"),
        (Frame(0, np.ones(2), u=np.array([np.inf])), None, "u"),
        (Frame(0, np.ones(2), u=np.ones((1, 1))), None, "u"),
        (Frame(-1, np.ones(2)), None, "seq"),
        (Frame(2**62 + 1, np.ones(2)), None, "seq"),
        (Frame(0, np.ones(2), sent_ns=2**63), None, "sent_ns"),
    ],
)
def test_what_cannot_be_sent(frame, dtype, where):
    with pytest.raises(InputError, match=rf"\(in {where}\)"):
        encode(frame, dtype)


@pytest.mark.parametrize(
    "arguments", [(0,), (1.5,), (3, -1), (3, 0, True, np.int32), (3, 0, True, np.float16)]
)
def test_sessions_that_cannot_be(arguments):
    with pytest.raises(InputError):
        Decoder(*arguments)


def test_errors_travel_between_processes():
    error = FrameError(Code.NEGATIVE, "channel 3 is -1", 17)
    back = pickle.loads(pickle.dumps(error))
    assert (back.code, back.message, back.seq) == (error.code, error.message, 17)
    assert back.code is Code.NEGATIVE
    assert all(code.text for code in Code)


def test_every_code_is_documented_once():
    page = Path(__file__).parents[2] / "docs" / "live_protocol.md"
    rows = re.findall(r"^\| `(\w+)` \|", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(row for row in rows if row in set(Code)) == sorted(Code)

"""Answers come out as they went in; damaged ones are refused."""

import struct

import numpy as np
import pytest
from bad_frames import sealed
from hypothesis import given, settings
from hypothesis import strategies as st

from evkf.errors import InputError
from evkf.live.answers import Ack, Estimate, Flags, Refusal, decode_answer
from evkf.live.frames import Code, Frame, FrameError, encode


def estimate(L: int = 2, N: int = 3, H: int = 4, **changed) -> Estimate:
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=L), rng.normal(size=(L, L)), rng.normal(size=N)
    ahead = rng.normal(size=(2, H, L))
    said = Estimate(7, Flags.NOT_DURABLE, *arrays, -12.5, 5, *ahead, 3, 10, 2**62)
    return said._replace(**changed)


ANSWERS = {
    "ack": Ack(41),
    "refusal": Refusal("negative", 17, "channel 3 is −1"),
    "refusal of no bin": Refusal("bad_checksum", None, ""),
    "estimate": estimate(),
}

DAMAGE = {Code.BAD_MAGIC, Code.BAD_VERSION, Code.BAD_CHECKSUM, Code.WRONG_LENGTH, Code.TOO_SHORT}
"""What a turned bit can be refused for; one in the magic may make it an answer of another kind."""


def alike(one: object, other: object) -> bool:
    assert type(one) is type(other)
    assert isinstance(one, tuple)
    assert isinstance(other, tuple)
    pairs = zip(one, other, strict=True)
    return all(np.array_equal(a, b, equal_nan=isinstance(a, np.ndarray)) for a, b in pairs)


@pytest.mark.parametrize("name", ANSWERS)
def test_what_goes_in_comes_out(name):
    said = ANSWERS[name]
    data = said.encode()
    assert alike(type(said).decode(data), said)
    assert alike(decode_answer(memoryview(data)), said)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 2**64 - 1),
    st.text("a é€𝄞\0", max_size=400),
    st.sampled_from(list(Code)),
)
def test_any_numbers_and_texts(seq, bin, text, code):
    assert Ack.decode(Ack(seq).encode()) == Ack(seq)
    back = Refusal.decode(Refusal(code, bin, text).encode())
    assert (back.code, back.seq) == (code, bin)
    assert text.startswith(back.text)
    assert back.text == text or len(text.encode()) > 1000


@pytest.mark.parametrize("shape", [(0, 0), (1, 0), (20, 200)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_estimates_keep_every_digit(shape, dtype):
    said = estimate(*shape)
    said = said._replace(**{name: getattr(said, name).astype(dtype) for name in ("mean", "cov")})
    back = Estimate.decode(said.encode())
    assert alike(back, said)
    assert back.mean.dtype == np.float64
    assert back.cov.shape == said.cov.shape


def test_estimates_may_hold_what_is_not_finite():
    said = estimate(mean=np.array([np.nan, np.inf]))
    assert alike(Estimate.decode(said.encode()), said)


def test_long_texts_are_cut_between_letters():
    back = Refusal.decode(Refusal("jump", 3, "é" * 499 + "€uro").encode())
    assert back.text == "é" * 499
    assert Refusal.decode(Refusal("jump", 3, "\ud800").encode()).text == "?"


@pytest.mark.parametrize("name", ANSWERS)
def test_damage_is_refused(name):
    data = ANSWERS[name].encode()
    for cut in range(len(data)):
        refused(data[:cut], {Code.TOO_SHORT, Code.WRONG_LENGTH})
    refused(data + b"\0", {Code.WRONG_LENGTH})
    for at in range(8 * len(data)):
        turned = bytearray(data)
        turned[at // 8] ^= 1 << at % 8
        refused(turned, DAMAGE)


def refused(data: bytes | bytearray, codes: set[Code]) -> None:
    with pytest.raises(FrameError) as caught:
        decode_answer(data)
    assert caught.value.code in codes


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("text", Code.WRONG_TYPE),
        (encode(Frame(0, np.ones(3))), Code.BAD_MAGIC),
        (sealed(struct.pack("<4sB3sQ", b"eVKA", 2, bytes(3), 0)), Code.BAD_VERSION),
        (sealed(struct.pack("<4sB3sQ", b"eVKA", 1, b"\1\0\0", 0)), Code.BAD_FLAGS),
        (sealed(struct.pack("<4sBBBBQI", b"eVKR", 1, 2, 1, 0, 0, 0) + b"x"), Code.BAD_FLAGS),
        (sealed(struct.pack("<4sBBBBQI", b"eVKR", 1, 1, 1, 9, 0, 0) + b"x"), Code.BAD_FLAGS),
        (sealed(struct.pack("<4sBBBBQI", b"eVKR", 1, 0, 1, 0, 5, 0) + b"x"), Code.BAD_FLAGS),
        (sealed(struct.pack("<4sBBBBQI", b"eVKR", 1, 1, 1, 0, 5, 1) + b"x\xff"), Code.BAD_TEXT),
        (sealed(struct.pack("<4sBBBBQI", b"eVKR", 1, 1, 1, 0, 5, 0) + b"\xff"), Code.BAD_TEXT),
        (sealed(struct.pack("<4sBBHQqqqdIII", b"eVKE", 1, 8, *[0] * 9)), Code.BAD_FLAGS),
        (
            sealed(struct.pack("<4sBBHQqqqdIII", b"eVKE", 1, 0, *[0] * 6, 2**32 - 1, 0, 0)),
            Code.WRONG_LENGTH,
        ),
    ],
)
def test_answers_that_are_none(data, code):
    refused(data, {code})


@pytest.mark.parametrize(
    "said",
    [
        Ack(-1),
        Ack(2**64),
        Refusal("", 0, ""),
        Refusal("x" * 33, 0, ""),
        Refusal("é", 0, ""),
        estimate(cov=np.eye(3)),
        estimate(mean=np.ones((2, 1))),
        estimate(rate=np.ones((3, 1))),
        estimate(status=-1),
        estimate(seq=-1),
    ],
)
def test_what_cannot_be_sent(said):
    with pytest.raises(InputError):
        said.encode()

"""Messages that no rig should send, made by chance, now and then with a good one among them."""

import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from open_ephys_emulator import continuous, spike, ttl

ODD: tuple[Any, ...] = (
    math.nan,
    math.inf,
    -math.inf,
    -1,
    -1.5,
    0.5,
    0,
    2**31,
    2**53,
    2**63,
    2**70,
    1e300,
    True,
    None,
    "7",
    "",
    "\ud800",
    [],
    [1],
    {},
    {"spike": {}},
)
NUMBERS = tuple(float(each) for each in ODD if isinstance(each, int | float))


def _flip(parts: list[bytes], rng: random.Random) -> list[bytes]:
    at = rng.randrange(len(parts))
    data = bytearray(parts[at])
    for _ in range(rng.randint(1, 6) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    parts[at] = bytes(data)
    return parts


def _cut(parts: list[bytes], rng: random.Random) -> list[bytes]:
    at = rng.randrange(len(parts))
    parts[at] = parts[at][: rng.randrange(len(parts[at]) + 1)]
    return parts


def _shuffle(parts: list[bytes], rng: random.Random) -> list[bytes]:
    return [rng.choice(parts) for _ in range(rng.randrange(6))] or [b""]


def _noise(parts: list[bytes], rng: random.Random) -> list[bytes]:
    parts[rng.randrange(len(parts))] = rng.randbytes(rng.randrange(400))
    return parts


def _field(parts: list[bytes], rng: random.Random) -> list[bytes]:
    header = json.loads(parts[1])
    inner = header.get("spike", header.get("content"))
    where = inner if rng.random() < 0.7 else header
    name = rng.choice([*where, "new"])
    if rng.random() < 0.2:
        where.pop(name, None)
    else:
        where[name] = rng.choice(ODD)
    parts[1] = json.dumps(header).encode()
    return parts


def _deep(parts: list[bytes], rng: random.Random) -> list[bytes]:
    parts[1] = rng.choice((b"[", b'{"a":', b"9")) * rng.randrange(
        60_000 if rng.random() < 0.02 else 50
    )
    return parts


def _time(parts: list[bytes], rng: random.Random) -> list[bytes]:
    header = json.loads(parts[1])
    inner = header.get("spike", header.get("content"))
    inner["sample_num"] = rng.choice((rng.randrange(2**53), rng.randrange(10**7)))
    parts[1] = json.dumps(header).encode()
    return parts


CHANGES: tuple[Callable[[list[bytes], random.Random], list[bytes]], ...]
CHANGES = (_flip, _cut, _shuffle, _noise, _field, _field, _deep, _time)


def odd_messages(seed: int, good: float = 0.0) -> Iterator[list[bytes]]:
    """Messages of Open Ephys; a millisecond passes from one to the next."""
    rng, number = random.Random(seed), 0
    while True:
        number += 1
        now = number * 30
        parts = rng.choice(
            (
                spike(number, f"unit {rng.randrange(25)}", now),
                ttl(number, rng.randrange(8), rng.randrange(2), now),
                continuous(number, now, rng.randrange(64)),
            )
        )
        yield parts if rng.random() < good else rng.choice(CHANGES)(parts, rng)


def _stamp(rng: random.Random, now: float) -> float:
    kind = rng.random()
    if kind < 0.5:
        return now
    return rng.choice(NUMBERS) if kind < 0.75 else rng.random() * 10.0 ** rng.randrange(-3, 12)


def odd_spikes(seed: int, good: float = 0.0) -> Iterator[tuple[list[float], float]]:
    """Samples of spikes with their time stamps."""
    rng, number = random.Random(seed), 0
    while True:
        number += 1
        now = 100 + number / 1000
        if rng.random() < good:
            yield [float(rng.randrange(20))], now
        else:
            unit = rng.choice((*NUMBERS, float(rng.randrange(20)), rng.random() * 1e4))
            yield [unit], _stamp(rng, now)


def odd_rows(seed: int, num: int, good: float = 0.0) -> Iterator[tuple[list[float], float]]:
    """Samples of bins with their time stamps; those of a bin come ten at a time."""
    rng, number = random.Random(seed), 0
    while True:
        number += 1
        values = [float(rng.randrange(4)) for _ in range(num)]
        now = 100 + number / 1000
        if rng.random() >= good:
            for _ in range(rng.randrange(num)):
                values[rng.randrange(num)] = rng.choice(NUMBERS)
            values = values[: rng.randrange(num)] if rng.random() < 0.1 else values
            now = _stamp(rng, now)
        yield values, now

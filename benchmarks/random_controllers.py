"""Random controllers, absurd clocks and garbage for the limits of stimulation, and their judge."""

import json
from typing import Any, NamedTuple

import numpy as np

from evkf.live.guard import Command, Guard, Output, State, Word, say
from evkf.live.limits import Limits

TOLERANCE = 1e-12
"""Relative: what the judge itself may round."""


class Segment(NamedTuple):
    """What was on from a time until another, or until something followed, in nanoseconds."""

    at: int
    until: int
    values: tuple[float, ...]


def violations(limits: Limits, period: float, segments: list[Segment]) -> list[str]:
    """What is wrong with a history of stimulation, if anything."""
    found, before, last = [], np.zeros(len(limits.amplitude)), None
    amplitude, rate, charge = (np.array(each) for each in limits[:3])
    marks, slopes = [0], []
    ends = [segment.at for segment in segments[1:]] + [segment.until for segment in segments[-1:]]
    for segment, end in zip(segments, ends, strict=True):
        values = np.array(segment.values)
        if last is not None and segment.at >= last.until:
            before = np.zeros_like(values)
        if (np.abs(values) > amplitude).any() or not np.isfinite(values).all():
            found.append(f"amplitude {values} at {segment.at}")
        passed = period if last is None else min((segment.at - last.at) / 1e9, period)
        steep = np.abs(values - before) > rate * passed * (1 + TOLERANCE)
        if (steep & (values != 0)).any():
            found.append(f"from {before} to {values} in {passed} s at {segment.at}")
        before, last = values, segment
        if (end := min(end, segment.until)) > segment.at:
            marks += [segment.at, end]
            slopes += [np.zeros_like(values), np.abs(values)]
    if not slopes:
        return found
    times = np.array(marks[1:], float)
    lengths = np.diff(times, prepend=times[0]) * 1e-9
    total = np.cumsum(lengths[:, None] * np.array(slopes), axis=0)
    window = limits.window * 1e9
    for channel in range(total.shape[1]):
        reached = total[:, channel]
        fallen = reached - np.interp(times - window, times, reached)
        risen = np.interp(times + window, times, reached) - reached
        most = max(fallen.max(), risen.max())
        if most > charge[channel] * (1 + TOLERANCE) + 1e-15:
            found.append(f"charge {most} of channel {channel}, at most {charge[channel]}")
    return found


def _values(rng: np.random.Generator, num: int) -> Any:
    """What a controller may ask for."""
    kind = rng.integers(12)
    if kind < 5:
        return (10.0 ** rng.uniform(-3, 3, num) * rng.choice([-1, 1], num)).tolist()
    if kind < 7:
        return (rng.choice([-1, 1], num) * 1e300).tolist()
    strange = [float("nan"), float("inf"), [], [0.0] * (num + 1), "much", None, {"a": 1}]
    if kind < 9:
        return rng.normal(size=num).tolist()
    odd = strange[rng.integers(len(strange))]
    return [odd] * num if kind == 9 else odd


def _message(rng: np.random.Generator, num: int, number: int, now: int, hold: int) -> bytes:
    kind = rng.integers(20)
    if kind == 0:
        return rng.bytes(int(rng.integers(60)))
    if kind == 1:
        return json.dumps({"number": "x", "values": [1] * num}).encode()
    if kind == 2:
        return say(Word.HALT, "so")
    if kind < 5:
        return say(Word.ARM)
    late = int(rng.choice([0, -hold, 1, 10**15, -(10**15)], p=[0.8, 0.05, 0.05, 0.05, 0.05]))
    old = number - int(rng.integers(5)) if kind == 5 else number
    command = Command(old, number, now + hold + late, ())._asdict() | {"values": _values(rng, num)}
    return json.dumps(command).encode()


def try_one(rng: np.random.Generator, steps: int) -> list[str]:
    """What a guard under a random controller did wrong, if anything."""
    num = int(rng.integers(1, 4))
    period = float(rng.choice([0.001, 0.01, 0.1]))
    bounds = (10.0 ** rng.uniform(-2, 2, num) for _ in range(3))
    limits = Limits(
        *(each.tolist() for each in bounds), window=float(rng.choice([0.005, 0.1, 1.0]))
    )
    guard, now, hold = Guard(limits, period, -int(1e9 * limits.window)), 0, int(1.5e9 * period)
    guard.heed(say(Word.ARM), 0)
    segments: list[Segment] = []
    found, numbers, stopped = [], [-1], False
    paces = np.array([0, 1, 0.2e9 * period, 1e9 * period, 3e9 * period, 1e12, -1e9 * period])
    for step in range(steps):
        now += int(rng.choice(paces, p=[0.05, 0.02, 0.1, 0.7, 0.08, 0.01, 0.04]))
        stops = rng.random() < 0.01
        if stops:
            stopped = not stopped
            output = guard.obey(Word.STOP if stopped else Word.LIFT, "", now)
        elif rng.random() < 0.1:
            output = guard.tick(now)
        else:
            output = guard.heed(_message(rng, num, step, now, hold), now)
        if output is None:
            continue
        on = any(output.values)
        if on and (stopped or output.state != State.ARMED):
            found.append(f"{output.values} is on while {output.state}")
        if on and output.number <= numbers[-1]:
            found.append(f"command {output.number} after {numbers[-1]}")
        numbers += [output.number] * on
        _keep(segments, output)
    return found + violations(limits, period, segments)


def _keep(segments: list[Segment], output: Output) -> None:
    """Time does not go back, whatever a clock says; nothing after nothing changes nothing."""
    if segments and not any(output.values) and not any(segments[-1].values):
        return
    at = max(output.at_ns, segments[-1].at if segments else output.at_ns)
    segments.append(Segment(at, max(output.until_ns, at), output.values))

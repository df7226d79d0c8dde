"""Gateways: what becomes of one that crashes, and of one that gives up."""

import json
import os
import time
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from rig_peers import Received

from evkf.errors import InputError
from evkf.live.frames import Frame
from evkf.live.pipes import PipeSender
from evkf.rigs.gateway import Notes, RigSource, Setup, heed, send

SETUP = Setup(("a", "b"), 0.01)


def crash_once(setup: Setup, sender: PipeSender, notes: Notes) -> None:
    """Send five bins; crash the first time, wait the second."""
    for seq in range(setup.first, setup.first + 5):
        send(sender, [Frame(seq, np.array([seq, 0]), sent_ns=setup.since_ns + 7)])
    if not setup.first:
        os.abort()
    while True:
        sender.read(timeout=0.1)


def note_and_crash_once(setup: Setup, sender: PipeSender, notes: Notes) -> None:
    """Note something odd twice, and tell of it; crash the first time, wait the second."""
    notes.count("bad_value", "channel 0 is 0.5", 3)
    notes.count("unknown_unit", "unit 7")
    heed(sender, notes)
    if not setup.first:
        send(sender, [Frame(0, np.array([0, 0]))])
        os.abort()
    while True:
        sender.read(timeout=0.1)


def give_up(setup: Setup, sender: PipeSender, notes: Notes) -> None:
    for num in (1, 500):
        notes.count("bad_value", "channel 0 is 0.5", num)
        heed(sender, notes)
    send(sender, [Frame(setup.first, np.array([1, 0]))])
    raise InputError("a stream of text", "--stream", "stream numbers")


def test_a_gateway_that_crashes_is_begun_again_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("evkf.rigs.gateway.AGAIN_S", 0.0)
    source = RigSource(crash_once, SETUP._replace(log=tmp_path / "log"))
    received = Received(source, 2)
    frames = received.until(lambda frames: len(frames) == 10)
    assert [frame.seq for frame in frames] == list(range(10))
    # The second was told when the last bin of the first had ended.
    assert {frame.sent_ns for frame in frames} == {7, 14}
    source.close()
    assert "the gateway ended with code -6" in (tmp_path / "log").read_text()
    assert not source.gone


def test_what_gateways_note_is_added_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("evkf.rigs.gateway.AGAIN_S", 0.0)
    source, frames = RigSource(note_and_crash_once, SETUP), []
    end = time.monotonic() + 30
    while source.odd["bad_value"] < 6 and time.monotonic() < end:
        frames += source.receive(0.05, 10)
    assert source.odd == {"bad_value": 6, "unknown_unit": 2}
    assert len(frames) == 1  # notes are not handed on
    source.close()


def test_notes_are_passed_on_when_there_are_more_and_seldom(monkeypatch: pytest.MonkeyPatch):
    told: list[dict[str, int]] = []

    class Sender:
        def send(self, data: bytes) -> None:
            told.append(json.loads(data.removeprefix(b"#")))

    now = [0.0]
    monkeypatch.setattr("evkf.rigs.gateway.time.monotonic", lambda: now[0])
    notes, sender = Notes(lambda _: None), cast("PipeSender", Sender())
    notes.pass_on(sender)
    for _ in range(10):
        notes.count("stray", "odd")
        notes.pass_on(sender)
    assert told == [{"stray": 1}]
    now[0] = 1.1
    notes.pass_on(sender)
    notes.pass_on(sender)
    assert told == [{"stray": 1}, {"stray": 10}]


def test_a_gateway_starts_before_it_is_asked_for_bins_and_is_told_which_is_due():
    source = RigSource(crash_once, SETUP)
    source.wait_until_up()
    assert source._pipe.receive(0.2, 10) == []
    source.due(70, 3)
    frames = Received(source, 2).until(lambda frames: len(frames) == 5)
    assert [(frame.seq, frame.sent_ns) for frame in frames] == [(k, 10) for k in range(70, 75)]
    source.close()


def test_the_session_is_told_why_a_gateway_gives_up_after_the_bins_before():
    source = RigSource(give_up, SETUP)
    received = Received(source, 2)
    assert [frame.seq for frame in received.until(lambda frames: len(frames) == 1)] == [0]
    with pytest.raises(InputError, match=r"a stream of text \(in --stream\): stream numbers"):
        received.until(lambda frames: len(frames) == 2)
    assert received.odd == {"bad_value": 501}
    source.close()

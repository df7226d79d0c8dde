"""Gateways: what becomes of one that crashes, and of one that gives up."""

import os
from pathlib import Path

import numpy as np
import pytest
from rig_peers import Received

from evkf.errors import InputError
from evkf.live.frames import Frame
from evkf.live.pipes import PipeSender
from evkf.rigs.gateway import Notes, RigSource, Setup, send

SETUP = Setup(("a", "b"), 0.01)


def crash_once(setup: Setup, sender: PipeSender, notes: Notes) -> None:
    """Send five bins; crash the first time, wait the second."""
    for seq in range(setup.first, setup.first + 5):
        send(sender, [Frame(seq, np.array([seq, 0]), sent_ns=setup.since_ns + 7)])
    if not setup.first:
        os.abort()
    while True:
        sender.read(timeout=0.1)


def give_up(setup: Setup, sender: PipeSender, notes: Notes) -> None:
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
    source.close()

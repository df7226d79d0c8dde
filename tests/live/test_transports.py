"""Pipes, ZeroMQ, feeds and budgets: what a session is connected with."""

import threading
import time

import numpy as np
import pytest

from evkf.live.answers import Ack, Estimate, Flags, Refusal
from evkf.live.desk import Action, Ask
from evkf.live.engine import Costs
from evkf.live.feed import READY, Tape, pace, start_feed
from evkf.live.frames import Decoder, End, Frame, encode
from evkf.live.machine import reckon
from evkf.live.pipes import PipeSender, PipeSource, pair
from evkf.live.slack import RETRY_NS, Budget, Latencies
from evkf.live.zeromq import ZmqReader, ZmqSender, ZmqSink, ZmqSource

PATIENCE_S = 60.0
TAPE = Tape(np.arange(30, dtype=np.uint8).reshape(10, 3), np.arange(10) == 0)


def test_a_tape_is_paced_over_a_pipe_and_acknowledged():
    own, other = pair()
    source, sender = PipeSource(own), PipeSender(other)
    decoder, seen = Decoder(3), []

    def listen() -> None:
        while True:
            for _, data in source.receive(5.0, 100):
                frame = decoder.decode(data)
                seen.append(frame)
                if isinstance(frame, End):
                    source.answer(None, Ack(frame.seq - 1).encode())
                    return

    thread = threading.Thread(target=listen)
    thread.start()
    assert pace(sender, TAPE, period=0.0, num=25) == 24
    thread.join()
    assert [frame.seq for frame in seen] == list(range(26))
    assert [frame.fresh for frame in seen[:-1]] == [seq % 10 == 0 for seq in range(25)]
    np.testing.assert_array_equal(seen[13].y, TAPE.counts[3])
    sender.close()
    assert source.receive(0.1, 10) == []
    source.close()


def test_an_operator_sets_the_pace_of_a_tape_and_has_it_begin_again():
    own, other = pair()
    source, sender = PipeSource(own), PipeSender(other)
    decoder, seen = Decoder(3), []

    def listen() -> None:
        while True:
            for _, data in source.receive(5.0, 1):
                frame = decoder.decode(data)
                seen.append(frame)
                if isinstance(frame, End):
                    source.answer(None, Ack(frame.seq - 1).encode())
                    return
                if frame.seq == 3:
                    source.answer(None, Action(Ask.RESET).encode())
                    source.answer(None, Action(Ask.SPEED, "100").encode())

    thread = threading.Thread(target=listen)
    thread.start()
    begin = time.monotonic()
    assert pace(sender, TAPE, period=0.25, num=60, width=0.25) == 59
    assert time.monotonic() - begin < 8
    thread.join()
    sender.close()
    source.close()
    assert [frame.seq for frame in seen] == list(range(61))
    starts = [frame.seq for frame in seen[:-1] if frame.fresh]
    assert starts == [0, *range(starts[1], 60, 10)]
    assert 4 <= starts[1] <= 6
    np.testing.assert_array_equal(seen[starts[1]].y, TAPE.counts[0])


def test_who_sends_waits_until_somebody_listens_and_then_heeds_what_was_asked_before():
    own, other = pair()
    process = start_feed(other, TAPE, period=3600.0, num=3, width=0.01)
    try:
        source = PipeSource(own, READY)
        process.join(timeout=2.0)
        assert process.is_alive()
        with pytest.raises(BlockingIOError):
            own.recv(100)
        source.answer(None, Action(Ask.SPEED, "100").encode())
        seen = []
        end = time.monotonic() + PATIENCE_S
        while len(seen) < 4 and time.monotonic() < end:
            seen += [Decoder(3).decode(data).seq for _, data in source.receive(1.0, 10)]
        assert seen == [0, 1, 2, 3]
        source.close()
        process.join(timeout=PATIENCE_S)
        assert process.exitcode == 0
    finally:
        process.kill()


def test_who_sends_ends_when_nobody_comes_to_listen():
    own, other = pair()
    process = start_feed(other, TAPE, period=0.01, num=None)
    own.close()
    process.join(timeout=PATIENCE_S)
    assert process.exitcode == 0


def test_what_is_not_acknowledged_is_sent_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("evkf.live.zeromq.RESEND_S", 0.0)
    source = ZmqSource("tcp://127.0.0.1:0")
    sender = ZmqSender(source.address)
    frames = [Frame(seq, TAPE.counts[seq]) for seq in range(3)]
    for frame in frames:
        sender.send(frame)
    given = []
    while len(given) < 3:
        given += source.receive(5.0, 10)
    source.answer(given[0][0], Ack(0).encode())
    source.answer(given[0][0], Refusal("negative", 1, "").encode())
    while sender.unacknowledged > 1:
        sender.read(timeout=0.1)
    again = []
    while not again:
        again += source.receive(5.0, 10)
    assert again[-1][1] == encode(frames[2])
    assert sender.acknowledged == 0
    assert [each.code for each in sender.refusals] == ["negative"]
    sender.close()
    source.close()


def test_a_session_that_comes_and_goes_gets_first_what_it_missed():
    source = ZmqSource("tcp://127.0.0.1:0")
    address, rng, over = source.address, np.random.default_rng(0), threading.Event()
    sender = ZmqSender(address)

    def send() -> None:
        seq = 0
        while not over.is_set():
            sender.send(Frame(seq, TAPE.counts[seq % len(TAPE.counts)]))
            sender.read()
            seq += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=send)
    thread.start()
    decoder, acknowledged = Decoder(TAPE.counts.shape[1]), -1
    for _ in range(60):
        last, until, peer = acknowledged, None, None
        while until is None or time.monotonic() < until:
            for sent_by, data in source.receive(0.001, 1000):
                peer = sent_by
                until = until or time.monotonic() + rng.uniform(0, 0.03)
                frame = decoder.decode(data)
                assert frame.seq <= last + 1, f"bin {frame.seq} comes before {last + 1}"
                last = max(frame.seq, last)
        if rng.uniform() < 0.5:
            # It may be lost: then more is sent again than need be.
            acknowledged = last
            source.answer(peer, Ack(acknowledged).encode())
        source.close()
        source = ZmqSource(address)
    over.set()
    thread.join()
    sender.close()
    source.close()
    assert acknowledged > 0


def test_the_end_is_told_to_a_session_that_was_taken_up_again():
    source = ZmqSource("tcp://127.0.0.1:0")
    sender = ZmqSender(source.address)
    sender.send(Frame(0, TAPE.counts[0]))
    [(peer, _)] = source.receive(5.0, 10)
    source.answer(peer, Ack(0).encode())
    assert sender.read(timeout=5.0) == [Ack(0)]
    source.close()
    assert not sender.end(1, timeout=0.3)
    again = ZmqSource(source.address)
    assert sender.end(1, timeout=5.0)
    [(_, data)] = again.receive(5.0, 10)
    assert Decoder(TAPE.counts.shape[1]).decode(data) == End(1)
    sender.close()
    again.close()


def test_a_sender_that_comes_again_under_its_name_is_heard():
    source = ZmqSource("tcp://127.0.0.1:0")
    # The first connection is not closed: nobody noticed that it is dead.
    senders = []
    for seq in range(2):
        senders.append(ZmqSender(source.address, name=b"rig"))
        senders[-1].send(Frame(seq, np.ones(3, np.uint8)))
        [(peer, data)] = source.receive(timeout=5.0, most=10)
        assert (peer, Decoder(3).decode(data).seq) == (b"rig", seq)
        source.answer(peer, Ack(seq).encode())
        assert senders[-1].read(timeout=5.0) == [Ack(seq)]
    for each in (*senders, source):
        each.close()


def test_bins_that_were_not_acknowledged_are_not_cut_off_by_an_end():
    source = ZmqSource("tcp://127.0.0.1:0")
    sender = ZmqSender(source.address)
    sender.send(Frame(0, TAPE.counts[0]))
    assert not sender.end(1, timeout=0.1)
    [(_, data)] = source.receive(5.0, 10)
    assert data == encode(Frame(0, TAPE.counts[0]))
    assert not source.receive(0.2, 10)
    sender.close()
    source.close()


def test_estimates_reach_a_subscriber_and_a_stalled_one_holds_up_nothing():
    sink = ZmqSink("tcp://127.0.0.1:0")
    reader, stalled = ZmqReader(sink.address), ZmqReader(sink.address)
    ahead = np.zeros((2, 0, 2))
    said = Estimate(7, Flags.LEARNED, np.zeros(2), np.eye(2), np.ones(3), -1.0, 0, *ahead, 1, 2, 3)
    found = []
    while not found:
        sink.publish(said)
        found = reader.read(timeout=0.05)
    assert found[0].seq == 7
    np.testing.assert_array_equal(found[0].cov, np.eye(2))
    for _ in range(20_000):
        sink.publish(said)
    reader.close()
    stalled.close()
    sink.close()


def test_a_bad_address_is_told_of():
    with pytest.raises(ValueError, match="cannot bind"):
        ZmqSource("tcp://127.0.0.1:port")


def test_a_budget_learns_from_what_was_spent():
    budget = Budget([100] * 200)
    assert budget.fits(100, now_ns=0)
    for _ in range(5):
        budget.spent(1000)
    assert not budget.fits(999, now_ns=0)
    assert budget.fits(1000, now_ns=0)
    # What is refused for long is tried again, the longer ones forgotten first.
    now = 0
    while not budget.fits(999, now):
        now += RETRY_NS + 1
    assert now < 10 * RETRY_NS
    assert budget.p99_ns == 100


def test_a_budget_does_not_believe_a_rehearsal_for_ever():
    budget, now = Budget([700, 900]), 0
    while not budget.fits(500, now):
        now += RETRY_NS + 1
        assert now < 10 * RETRY_NS
    budget.spent(400)
    assert budget.p99_ns == 400
    assert budget.fits(500, now)


def test_latencies_keep_quantiles():
    rng = np.random.default_rng(0)
    durations = np.exp(rng.normal(13, 1, 5000)).astype(int)
    found = Latencies()
    for each in durations:
        found.add(int(each))
    for share in (0.5, 0.99, 0.999):
        np.testing.assert_allclose(found.quantile(share), np.quantile(durations, share), rtol=0.05)
    assert found.worst == durations.max()


def test_a_load_counts_filtering_alone():
    costs = Costs(observe=0.001, observe_p99=0.006, learn=0.1, learn_p99=0.2, compile=1.0)
    assert reckon(costs, 0.01).holds
    assert not reckon(costs, 0.008).holds

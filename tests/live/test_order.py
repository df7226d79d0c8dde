"""Bins come out once each, in order, and every count is exact."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evkf.errors import InputError
from evkf.live import order as module
from evkf.live.order import Counters, Order, OrderError, Ready


class Reference:
    """The rules, word by word: sets of everything that ever happened, looked through every time."""

    def __init__(self, window: int, start: int, patience_ns: int):
        self.window, self.patience, self.next = window, patience_ns, start
        self.came: dict[int, tuple[Any, int]] = {}
        self.refused: set[int] = set()
        self.lost: set[int] = set()
        self.received = self.duplicates = self.late = self.reordered = 0

    def push(self, seq: int, item: Any, now_ns: int) -> list[Ready]:
        self.received += 1
        if seq in self.lost:
            self.late += 1
        elif seq in self.came or seq < self.next:
            self.duplicates += 1
        else:
            self.reordered += any(other > seq for other in [*self.came, *self.refused])
            self.came[seq] = (item, now_ns)
        return self.deliver(lambda seq: self.given_up(seq))

    def lose(self, seq: int) -> list[Ready]:
        if seq >= self.next:
            self.refused.add(seq)
        return self.deliver(lambda seq: self.given_up(seq))

    def expire(self, now_ns: int) -> list[Ready]:
        old = [s for s, (_, then) in self.came.items() if now_ns - then >= self.patience]
        return self.deliver(lambda seq: self.given_up(seq) or any(other > seq for other in old))

    def flush(self, end: int) -> list[Ready]:
        seen = [*self.came, *self.refused, end - 1]
        return self.deliver(lambda seq: any(other >= seq for other in seen))

    def given_up(self, seq: int) -> bool:
        seen = [*self.came, *self.refused]
        return seq in self.refused or any(other >= seq + self.window for other in seen)

    def deliver(self, gone: Callable[[int], bool]) -> list[Ready]:
        ready = []
        while self.next in self.came or gone(self.next):
            if self.next not in self.came:
                self.lost.add(self.next)
            ready.append(Ready(self.next, self.came.get(self.next, (None,))[0]))
            self.next += 1
        return ready

    @property
    def counters(self) -> Counters:
        delivered = sum(seq < self.next for seq in self.came)
        counts = (self.received, delivered, self.duplicates, self.late, self.reordered)
        return Counters(*counts, len(self.lost))


calls = st.lists(
    st.tuples(
        st.sampled_from(["push"] * 6 + ["lose", "expire"]), st.integers(-6, 9), st.integers(0, 4)
    ),
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(calls, st.integers(1, 6), st.integers(0, 5), st.integers(0, 8), st.integers(0, 6))
def test_any_calls_against_the_rules(calls, window, start, patience, beyond):
    order = Order(window, start, patience)
    reference = Reference(window, start, patience)
    now = 0
    for i, (call, ahead, later) in enumerate(calls):
        now, seq = now + later, max(order.next + ahead, 0)
        arguments = {"push": (seq, i, now), "lose": (seq,), "expire": (now,)}[call]
        assert getattr(order, call)(*arguments) == getattr(reference, call)(*arguments)
        assert (order.next, order.counters) == (reference.next, reference.counters)
        assert order.waiting < window
        counts = order.counters
        taken = counts.delivered + counts.duplicates + counts.late + order.waiting
        assert counts.received == taken
        assert order.next == start + counts.delivered + counts.lost
    end = order.next + beyond
    assert order.flush(end) == reference.flush(end)
    assert (order.next, order.counters) == (reference.next, reference.counters)
    assert order.waiting == 0


def test_a_long_stream_with_bins_lost_twice_and_out_of_place():
    rng, num, window = np.random.default_rng(0), 20_000, 16
    dropped = set(rng.choice(num - 1, num // 100, replace=False).tolist())
    places = {seq: float(seq) for seq in range(num) if seq not in dropped}
    for seq in rng.choice(list(places), num // 100, replace=False).tolist():
        places[seq] += rng.uniform(1, window - 1)
    twice = rng.choice(list(places), num // 100, replace=False).tolist()
    sent = [*places.items(), *((seq, places[seq] + rng.uniform(0, 100)) for seq in twice)]
    stream = [seq for seq, _ in sorted(sent, key=lambda pair: pair[1])]

    order = Order(window)
    out = [ready for i, seq in enumerate(stream) for ready in order.push(seq, -seq, i)]
    out += order.flush(num)
    assert [ready.seq for ready in out] == list(range(num))
    assert {ready.seq for ready in out if ready.item is None} == dropped
    assert all(ready.item in (None, -ready.seq) for ready in out)
    highest, passed, seen = -1, 0, set()
    for seq in stream:
        passed += seq < highest and seq not in seen
        highest = max(highest, seq)
        seen.add(seq)
    assert passed > 100
    kept = num - len(dropped)
    assert order.counters == Counters(len(stream), kept, len(twice), 0, passed, len(dropped))


def test_late_is_not_twice():
    order = Order(window=2)
    order.push(0, "a", 0)
    assert order.push(3, "d", 0) == [Ready(1, None)]
    assert order.push(1, "b", 0) == []
    assert order.push(1, "b", 0) == []
    assert order.push(0, "a", 0) == []
    assert order.push(3, "d", 0) == []
    assert order.push(2, "c", 0) == [Ready(2, "c"), Ready(3, "d")]
    assert order.counters == Counters(7, 3, duplicates=2, late=2, reordered=1, lost=1)


def test_patience():
    order = Order(window=100, patience_ns=10)
    order.push(2, "c", 0)
    order.push(5, "f", 5)
    assert order.expire(9) == []
    assert order.expire(10) == [Ready(0, None), Ready(1, None), Ready(2, "c")]
    assert order.expire(15) == [Ready(3, None), Ready(4, None), Ready(5, "f")]
    assert order.expire(1000) == []


def test_a_refused_bin_is_not_waited_for_but_taken_if_it_comes():
    order = Order(window=100)
    assert order.lose(0) == [Ready(0, None)]
    assert order.lose(3) == []
    assert order.push(2, "c", 0) == []
    assert order.push(1, "b", 0) == [Ready(1, "b"), Ready(2, "c"), Ready(3, None)]
    assert order.lose(2) == []
    order.lose(6)
    assert order.push(6, "g", 0) == []
    assert order.lose(6) == []
    assert order.flush() == [Ready(4, None), Ready(5, None), Ready(6, "g")]
    assert order.counters.lost == 4


def test_jumps_are_refused_and_change_nothing():
    order = Order(window=4, start=10, largest_gap=50)
    order.push(11, "b", 0)
    before = order.counters
    for call in (lambda: order.push(61, "x", 0), lambda: order.lose(61), lambda: order.flush(61)):
        with pytest.raises(OrderError) as caught:
            call()
        assert (caught.value.code, caught.value.seq) == ("jump", 61)
    assert (order.next, order.waiting, order.counters) == (10, 1, before)
    assert len(order.push(60, "x", 0)) == 47


def test_restart_ahead():
    order = Order(window=4, largest_gap=50)
    order.push(1, "b", 0)
    assert order.restart(1000) == [Ready(0, None), Ready(1, "b")]
    assert order.push(1000, "x", 0) == [Ready(1000, "x")]
    for seq in (0, 2, 999, 1, 1000):
        order.push(seq, "again", 0)
    assert order.counters == Counters(7, 2, duplicates=2, late=3, lost=1, restarts=1)


def test_restart_behind():
    order = Order(window=2)
    for seq in (0, 2, 3, 4, 7, 8, 9):
        order.push(seq, seq, 0)
    assert order.restart(0) == []
    assert [r.seq for seq in range(10) for r in order.push(seq, seq, 0)] == list(range(10))
    counts = order.counters
    assert (counts.delivered, counts.lost, counts.late, counts.restarts) == (17, 3, 0, 1)
    order.restart(8)
    assert order.push(9, "j", 0) == []
    assert order.push(10, "k", 0)[0] == Ready(8, None)
    order.push(8, "i", 0)
    order.push(6, "g", 0)
    assert (order.counters.late, order.counters.duplicates) == (1, 1)


def test_a_stretch_is_forgotten_above_a_restart():
    order = Order(window=1)
    order.push(9, "j", 0)
    order.restart(5)
    order.push(5, "f", 0)
    order.push(5, "f", 0)
    order.push(4, "e", 0)
    assert (order.counters.duplicates, order.counters.late) == (1, 1)


def test_the_oldest_losses_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 100)
    order = Order(window=1)
    for seq in range(1, 2001, 2):
        order.push(seq, seq, 0)
    for seq in (0, 1998):
        order.push(seq, seq, 0)
    assert (order.counters.duplicates, order.counters.late) == (1, 1)
    assert order.counters.lost == 1000


@pytest.mark.parametrize("arguments", [(0,), (3, -1), (3, 0, -1), (3, 0, 0, 2), (2.5,)])
def test_orders_that_cannot_be(arguments):
    with pytest.raises(InputError):
        Order(*arguments)


def test_nothing_is_no_item():
    with pytest.raises(InputError, match="lose"):
        Order(1).push(0, None, 0)

"""The time that bins leave: what is done in it, and in which order."""

from types import SimpleNamespace

import numpy as np
import pytest

from evkf.live.engine import Costs, Learned
from evkf.live.ports import Due
from evkf.live.spare import LATE, Spare

MS, S = 10**6, 10**9
SAVE_NS = 2 * S


class World:
    """All that a session lends to its spare time; learning takes a millisecond."""

    def __init__(self) -> None:
        self.now, self.saved, self.busy = 0, [], False
        self.engine = SimpleNamespace(
            key=np.zeros(2, np.uint32), bins=7, due=True, learn=self._learn
        )
        self.journal = SimpleNamespace(append=lambda *_: 0, position=3)
        costs = Costs(1e-4, 1e-4, 1e-3, 1e-3, 1.0)
        lent = self.engine, self.journal, costs, SAVE_NS
        self.spare = Spare(*lent, lambda: Due(8), None, self, lambda: self.now)

    def _learn(self) -> Learned:
        self.now += MS
        return Learned(1, np.zeros(2, int), False)

    def save(self, engine: object, position: int, due: Due) -> bool:
        if not self.busy:
            self.saved.append((position, due.seq))
        return not self.busy

    def use(self, left: int, learns: bool = True) -> None:
        self.spare.use(self.now, left, 10 * MS, learns)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("left", "learns", "due", "learned"),
    [
        (5 * MS, True, True, 1),
        (MS // 2, True, True, 0),
        (5 * MS, False, True, 0),
        (5 * MS, True, False, 0),
    ],
)
def test_a_gradient_step_is_made_if_it_is_wanted_and_fits(
    world: World, left: int, learns: bool, due: bool, learned: int
):
    world.engine.due = due
    world.use(left, learns)
    assert (world.spare.learned, world.spare.has_learned) == (learned, learned > 0)


def test_one_gradient_step_is_made_a_bin(world: World):
    world.use(9 * MS)
    world.use(8 * MS)
    assert world.spare.learned == 1
    world.spare.has_learned = False
    world.use(9 * MS)
    assert world.spare.learned == 2


def test_a_checkpoint_waits_for_slack_but_not_for_ever(world: World):
    world.engine.due = False
    world.now = SAVE_NS + 1
    world.use(0)
    assert world.saved == []
    world.use(5 * MS)
    assert world.saved == [(3, 8)]
    # In a session that has no time to spare.
    world.now += LATE * SAVE_NS
    world.use(0)
    world.now += 1
    for _ in range(2):
        world.use(0)
    assert len(world.saved) == 2


def test_a_checkpoint_that_is_wanted_soon_comes_once_the_last_is_written(world: World):
    world.engine.due, world.busy = False, True
    world.spare.save_soon()
    world.use(0)
    world.busy = False
    for _ in range(2):
        world.use(0)
    assert world.saved == [(3, 8)]

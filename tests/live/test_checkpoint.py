"""Checkpoints come back bit for bit; damaged ones are passed over, and no crash leaves none."""

import errno
import sys
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from evkf.data.storage import save_tree
from evkf.errors import InputError
from evkf.live.checkpoint import CheckpointWarning, load_newest, save
from tests.live.disks import ForgetfulDisk


class Pair(NamedTuple):
    first: object
    second: object


def state(bin):
    """Told from that of any other bin."""
    rng = np.random.default_rng(bin)
    return {
        "model": {"C": rng.normal(size=(3, 2)), "seen": rng.random(4) < 0.5},
        "steps": np.array(bin, np.int32),
        "odd": np.array([np.nan, -0.0, np.inf, 5e-324]),
        "none": np.zeros((2, 0), np.float32),
    }


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def bins(folder):
    return [int(path.stem) for path in sorted(folder.glob("0*.safetensors"))]


def test_a_checkpoint_comes_back(tmp_path):
    folder = tmp_path / "deep" / "down"
    assert load_newest(folder, state(0)) is None
    path = save(folder, 41, state(41), {"animal": "m1"})
    assert path == folder / "000000000041.safetensors"
    found = load_newest(folder, state(0))
    assert (found.bin, found.metadata, found.path) == (41, {"animal": "m1"}, path)
    assert same(found.state, state(41))
    assert isinstance(found.state["steps"], np.ndarray)


def test_any_tree_comes_back_into_one_like_it(tmp_path):
    tree = Pair(jnp.arange(3.0), [{"a": jnp.ones(2, jnp.int32)}, None])
    save(tmp_path, 3, tree, {})
    found = load_newest(tmp_path, like=Pair(jnp.zeros(3), [{"a": jnp.zeros(2, jnp.int32)}, None]))
    assert isinstance(found.state, Pair)
    np.testing.assert_array_equal(found.state.first, tree.first)
    np.testing.assert_array_equal(found.state.second[0]["a"], [1, 1])


def test_another_structure_is_an_error_and_not_damage(tmp_path):
    save(tmp_path, 1, {"a": np.ones(2)}, {})
    with pytest.raises(InputError, match="leaf"):
        load_newest(tmp_path, like={"a": np.ones(3)})


def test_the_newest_are_kept_and_found(tmp_path):
    for bin in (5, 900, 10_000, 99_999):
        save(tmp_path, bin, state(bin), {})
    assert bins(tmp_path) == [10_000, 99_999]
    assert load_newest(tmp_path, state(0)).bin == 99_999
    assert load_newest(tmp_path, state(0), at_most=99_999).bin == 99_999
    assert load_newest(tmp_path, state(0), at_most=99_998).bin == 10_000
    assert load_newest(tmp_path, state(0), at_most=9_999) is None
    save(tmp_path, 100_000, state(100_000), {}, keep=3)
    assert bins(tmp_path) == [10_000, 99_999, 100_000]
    save(tmp_path, 100_000, state(1), {}, keep=1)
    assert bins(tmp_path) == [100_000]
    assert same(load_newest(tmp_path, state(0)).state, state(1))


def test_later_ones_go_when_a_session_went_back(tmp_path):
    for bin in (100, 200):
        save(tmp_path, bin, state(bin), {})
    save(tmp_path, 150, state(150), {})
    assert bins(tmp_path) == [100, 150]


@pytest.mark.parametrize("place", np.random.default_rng(0).random(8))
@pytest.mark.parametrize("how", ["cut", "flip"])
def test_damaged_ones_are_passed_over(tmp_path, how, place):
    save(tmp_path, 1, state(1), {"a": "b"})
    path = save(tmp_path, 2, state(2), {"a": "b"})
    data = bytearray(path.read_bytes())
    at = int(place * len(data))
    data[at] ^= 4
    path.write_bytes(data if how == "flip" else data[:at])
    with pytest.warns(CheckpointWarning, match=r"000000000002\.safetensors"):
        found = load_newest(tmp_path, state(0))
    assert found.bin == 1
    assert same(found.state, state(1))


def test_when_all_are_damaged_there_is_none(tmp_path):
    for bin in (1, 2):
        save(tmp_path, bin, state(bin), {}).write_bytes(b"")
    with pytest.warns(CheckpointWarning) as caught:
        assert load_newest(tmp_path, state(0)) is None
    assert len(caught) == 2


def test_files_that_are_no_checkpoint_of_their_bin_are_passed_over(tmp_path):
    path = save(tmp_path, 1, state(1), {})
    path.rename(tmp_path / "000000000007.safetensors")
    save_tree(tmp_path / "000000000008.safetensors", state(8), {"animal": "m1"})
    with pytest.warns(CheckpointWarning, match="no checkpoint of this bin"):
        assert load_newest(tmp_path, state(0)) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("call", range(1, 12))
def test_a_loss_of_power_leaves_the_newest_or_the_one_before(tmp_path, call, seed):
    disk = ForgetfulDisk(seed)
    disk.make_folder(tmp_path)
    disk.cut_at = call
    done = 0
    try:
        for bin in (10, 20, 30, 40):
            save(tmp_path, bin, {"bin": np.array(bin, np.int32)}, {}, disk)
            done = bin
    except OSError:
        assert disk.off
    disk.cut()
    found = load_newest(tmp_path, {"bin": np.array(0, np.int32)})
    if found is None:
        assert done == 0
    else:
        assert done <= found.bin <= done + 10
        assert found.state["bin"] == found.bin


@pytest.mark.parametrize("call", ["rename", "sync_folder"])
def test_a_disk_that_refuses_takes_nothing_away(tmp_path, call):
    for bin in (1, 2):
        save(tmp_path, bin, state(bin), {})
    disk = ForgetfulDisk()
    disk.refuse = lambda name: errno.ENOSPC if name == call else None
    with pytest.raises(OSError, match="space"):
        save(tmp_path, 3, state(3), {}, disk)
    assert bins(tmp_path)[:2] == [1, 2]
    disk.refuse = lambda name: None
    save(tmp_path, 3, state(3), {}, disk)
    assert bins(tmp_path) == [2, 3]


def test_what_a_killed_process_left_is_removed(tmp_path):
    left = [
        tmp_path / name for name in ("unfinished.safetensors", ".unfinished.safetensors.1.part")
    ]
    for path in left:
        path.write_bytes(b"half")
    save(tmp_path, 1, state(1), {})
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001.safetensors"]


def test_without_the_extra_it_is_named(tmp_path, monkeypatch):
    save(tmp_path, 1, state(1), {})
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(InputError, match=r"evkf\[storage\]"):
        save(tmp_path, 2, state(2), {})
    with pytest.raises(InputError, match=r"evkf\[storage\]"):
        load_newest(tmp_path, state(0))


def test_input_is_checked(tmp_path):
    for bin in (-1, 1.5, 10**12):
        with pytest.raises(InputError, match="bin"):
            save(tmp_path, bin, {}, {})
    with pytest.raises(InputError, match="keep"):
        save(tmp_path, 1, {}, {}, keep=0)
    with pytest.raises(InputError, match="int64"):
        save(tmp_path, 1, {"count": np.array(3)}, {})
    with pytest.raises(InputError, match="JSON"):
        save(tmp_path, 1, {}, {"a": np.ones(2)})  # pyright: ignore[reportArgumentType]

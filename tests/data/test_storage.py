"""Trees in files come back bit for bit, and anything else is refused."""

import json
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load, save, save_file

import evkf
from evkf.data import storage
from evkf.data.storage import load_tree, read_meta, save_tree
from evkf.errors import InputError


class Pair(NamedTuple):
    first: object
    second: object


def tree():
    """Every type, awkward values and awkward shapes."""
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1e-45, 1 / 3]
    return Pair(
        {
            "double": jnp.asarray(odd, jnp.float64),
            "single": jnp.asarray(odd, jnp.float32),
            "whole": jnp.asarray([-(2**31), 2**31 - 1], jnp.int32),
        },
        (
            jax.random.key_data(jax.random.key(3)),
            jnp.asarray([[True], [False]]),
            np.asarray(2.5),
            jnp.zeros((4, 0)),
            None,
            np.arange(6.0).reshape(2, 3).T,
        ),
    )


def blank():
    return jax.tree.map(jnp.zeros_like, tree())


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in pairs
    )


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "tree.safetensors"
    save_tree(place, tree(), {"animal": "m1", "rates": [1, 0.1]})
    return place


def rewrite(path, arrays=None, **changes):
    """Write another header, with a digest that fits."""
    header, old = storage._read(path)
    arrays = old if arrays is None else arrays
    header = {k: v for k, v in {**header, **changes}.items() if v is not None}
    path.write_bytes(b"".join(storage._serialise(header, arrays)))


def test_bits_survive(path):
    loaded, meta = load_tree(path, blank())
    assert same(loaded, tree())
    assert meta == read_meta(path) == {"animal": "m1", "rates": [1, 0.1]}
    assert jax.tree.structure(loaded) == jax.tree.structure(tree())


def test_the_package_reads_what_is_written_and_its_own_files_are_read(path):
    header, arrays = storage._read(path)
    named = {name: np.asarray(leaf) for name, leaf in storage._leaves_by_path(tree()).items()}
    found = load(path.read_bytes())
    assert found.keys() == named.keys()
    for name, array in named.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
    # As it was written before, by the package: the digest is the same.
    path.write_bytes(save(arrays, {"evkf": json.dumps(header)}))
    assert same(load_tree(path, blank())[0], tree())


def test_numpy_stays_numpy_and_shapes_will_do(path):
    loaded, _ = load_tree(path, jax.eval_shape(tree))
    assert same(loaded, tree())
    _, rest = load_tree(path, tree())[0]
    assert [type(x) is np.ndarray for x in rest if x is not None] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_header_says_what_is_inside(path):
    header, arrays = storage._read(path)
    assert header["format"] == "evkf-tree"
    assert header["schema"] == storage.SCHEMA
    assert header["kind"] == "Pair"
    assert header["leaves"][".first['whole']"] == {"shape": [2], "dtype": "int32"}
    assert header["leaves"].keys() == arrays.keys()


def test_header_names_the_version_that_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(evkf, "__version__", "9.9")
    save_tree(tmp_path / "a.safetensors", (), {})
    assert storage._read(tmp_path / "a.safetensors")[0]["version"] == "9.9"


def test_files_of_equal_trees_are_equal(path):
    before = path.read_bytes()
    save_tree(path, tree(), read_meta(path))
    assert path.read_bytes() == before


OTHER = {
    "shape": (
        lambda t: t._replace(first={**t.first, "whole": jnp.zeros(3, jnp.int32)}),
        "int32[3]",
    ),
    "type": (
        lambda t: t._replace(first={**t.first, "double": jnp.zeros(8, "float32")}),
        "float32[8]",
    ),
    "more": (
        lambda t: t._replace(first={**t.first, "extra": jnp.zeros(1)}),
        "is missing in this file",
    ),
    "less": (lambda t: t._replace(second=t.second[:-1]), "second[5]' is float64[3, 2]"),
    "no array": (lambda t: t._replace(first={**t.first, "whole": 3}), "int in what"),
}


@pytest.mark.parametrize("name", OTHER)
def test_first_difference_is_named(path, name):
    change, words = OTHER[name]
    with pytest.raises(InputError) as caught:
        load_tree(path, change(tree()))
    assert words in str(caught.value)
    assert caught.value.where == str(path)


def test_refuses_what_is_no_such_file(path, tmp_path):
    cases = {"no such file": tmp_path / "nothing.safetensors", "evkf-tree": tmp_path / "other"}
    save_file({"a": np.zeros(2)}, cases["evkf-tree"])
    cases["no .safetensors"] = tmp_path / "text.safetensors"
    cases["no .safetensors"].write_text("no such thing, but long enough to have a header")
    for words, place in cases.items():
        for read in (lambda p: load_tree(p, {}), read_meta):
            with pytest.raises(InputError, match=words):
                read(place)
    with pytest.raises(InputError, match="no such file"):
        read_meta(tmp_path)


def test_refuses_every_damage(path):
    whole = path.read_bytes()
    broken = path.with_name("broken.safetensors")
    sizes = [0, 4, 100, len(whole) // 2, len(whole) - 1]
    for content in [whole[:size] for size in sizes] + [whole + b"\0"]:
        broken.write_bytes(content)
        with pytest.raises(InputError, match="damaged"):
            load_tree(broken, blank())
    start = whole.index(b"}}") + 2
    for at in (whole.index(b"m1"), start + 20, len(whole) - 3):
        broken.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(InputError, match="damaged"):
            load_tree(broken, blank())


@pytest.mark.parametrize("schema", [storage.SCHEMA - 1, storage.SCHEMA + 1, "1"])
def test_refuses_another_schema(path, schema):
    rewrite(path, schema=schema, version="9.0")
    with pytest.raises(InputError, match=r"evkf 9\.0"):
        read_meta(path)


@pytest.mark.parametrize(
    "leaf",
    [1.0, np.float64(1), np.zeros(2, complex), np.zeros(2, np.int64), np.zeros(2, ">f4"), "text"],
)
def test_saves_only_what_comes_back(tmp_path, leaf):
    with pytest.raises(InputError, match=r"leaf \"\['a'\]\" of type"):
        save_tree(tmp_path / "a.safetensors", {"a": leaf}, {})
    with pytest.raises(InputError, match="key_data"):
        save_tree(tmp_path / "a.safetensors", jax.random.key(0), {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("meta", [{"a": (1, 2)}, {1: 2}, {"a": np.nan}, {"a": np.ones(2)}, ["a"]])
def test_meta_must_come_back(tmp_path, meta):
    with pytest.raises(InputError, match="JSON"):
        save_tree(tmp_path / "a.safetensors", (), meta)


def test_refuses_places(tmp_path):
    with pytest.raises(InputError, match="folder"):
        save_tree(tmp_path / "no" / "a.safetensors", (), {})
    with pytest.raises(InputError, match="end it in"):
        save_tree(tmp_path / "a.npz", (), {})


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        save_tree(path, {}, {})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for act in (lambda: read_meta(path), lambda: save_tree(path, (), {})):
        with pytest.raises(InputError, match=r'pip install "evkf\[storage\]"'):
            act()


def test_other_programs_can_read_the_header(path):
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["evkf"])
    assert header["meta"]["animal"] == "m1"
    assert content != save({})

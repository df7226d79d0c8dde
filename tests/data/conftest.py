"""A recording with everything in it."""

import numpy as np
import pytest

from evkf.data import Recording


def assert_same(one: Recording, other: Recording) -> None:
    """All but `source`, bit for bit."""
    assert (one.bin_width, one.lengths) == (other.bin_width, other.lengths)
    tables = ("behaviour", "trials", "units")
    assert all(getattr(one, name).keys() == getattr(other, name).keys() for name in tables)
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("counts", "masks")]
    pairs.append((one.start_times, other.start_times))
    for name in tables:
        pairs += [(x, getattr(other, name)[key]) for key, x in getattr(one, name).items()]
    for a, b in pairs:
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def full() -> Recording:
    rng = np.random.default_rng(0)
    masks = rng.random((10, 3)) < 0.8
    return Recording(
        rng.poisson(2.0, (10, 3)).astype(np.uint8),
        bin_width=1 / 30,
        lengths=(4, 6),
        start_times=np.array([0.1, 5.0]),
        masks=masks,
        behaviour={
            "hand/position": rng.normal(size=(10, 2)).astype(np.float32),
            "lick": masks[:, 0],
        },
        trials={"target": np.array([3, 1]), "name": np.array(["ü€", "longer"], "<U9")},
        units={
            "id": np.array(["a", "b", "c"]),
            "area": np.array([b"M1", b"PMd", b""]),
            "position": rng.normal(size=(3, 2, 2)),
        },
    )

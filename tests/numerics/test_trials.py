"""Trials laid end to end are cut where they end, and refused where they do not fit."""

import numpy as np
import pytest

from evkf.errors import InputError
from evkf.numerics.trials import bins_of, read_bins, read_counts, slices


def test_trials_are_cut_where_they_end():
    array = np.arange(6)
    assert [array[s].tolist() for s in slices((1, 3, 2), 6)] == [[0], [1, 2, 3], [4, 5]]
    assert bins_of((1, 3, 2)).tolist() == [0, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("lengths", [(), (0, 6), (5,), (3, 4)])
def test_lengths_that_do_not_fit(lengths):
    with pytest.raises(InputError, match="lengths"):
        slices(lengths, 6)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.ones(3), "shape"),
        (np.ones((0, 3)), "shape"),
        ([["a"]], "type"),
        ([[1.0, np.nan]], r"counts\[0, 1\]"),
        ([[1.0], [-1.0]], r"counts\[1, 0\]"),
    ],
)
def test_counts_that_are_none(value, says):
    with pytest.raises(InputError, match=says):
        read_counts(value)


def test_other_columns_may_be_negative():
    assert read_bins([[-1]], "velocity").tolist() == [[-1.0]]

"""CSV files of counts."""

from dataclasses import replace

import numpy as np
import pytest

from evkf.data import Recording, read_arrays, write_arrays
from evkf.errors import InputError
from tests.data.conftest import assert_same


def write(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "day1.csv"
    path.write_text(text, encoding=encoding)
    return path


def test_a_row_a_bin(tmp_path):
    recording = read_arrays(write(tmp_path, "u1,u2\n0,3\n2,1.0\n\n"), 0.02)
    assert recording.counts.tolist() == [[0, 3], [2, 1]]
    assert recording.counts.dtype.kind == "i"
    assert (recording.units["id"].tolist(), recording.trials) == (["u1", "u2"], {})


def test_trials_and_times(tmp_path):
    text = "time,u1,trial,u2\r\n1.0,1,b,2\r\n1.033,3,b,4\r\n7.5,5,a,6\r\n"
    recording = read_arrays(write(tmp_path, text, "utf-8-sig"), 1 / 30)
    assert recording.counts.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert (recording.lengths, recording.start_times.tolist()) == ((2, 1), [1.0, 7.5])
    assert recording.trials["trial"].tolist() == ["b", "a"]
    whole = read_arrays(tmp_path / "day1.csv", 1 / 30, leave_out=["trial", "time", "u2"])
    assert (whole.lengths, whole.counts.T.tolist(), whole.trials) == ((3,), [[1, 3, 5]], {})


def test_what_is_written_is_read_again(tmp_path):
    rng = np.random.default_rng(0)
    recording = Recording(
        rng.poisson(1.0, (9, 3)),
        0.005,
        lengths=(2, 7),
        start_times=np.array([0.1, 0.1 + 0.2]),
        trials={"trial": np.array([4, 2])},
        units={"id": np.array(["a,b", 'q"', "c"])},
    )
    path = tmp_path / "a.csv"
    write_arrays(path, recording)
    assert_same(read_arrays(path, 0.005), recording)
    signals = replace(recording, counts=rng.normal(size=(9, 3)))
    write_arrays(path, signals, overwrite=True)
    assert_same(read_arrays(path, 0.005, signals=True), signals)


def test_what_would_be_lost_is_not_written(tmp_path, full):
    says = "'hand/position', behaviour 'lick', trials 'target', .*units 'area', .*, masks would be"
    with pytest.raises(InputError, match=says):
        write_arrays(tmp_path / "a.csv", full)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("u1,u2\n0,3\n2,many\n", "'many', which is not a number .*line 3, column 'u2'"),
        ("u1,u2\n0,\n", "an empty cell .*line 2, column 'u2'"),
        ("u1,u2\n\n0,-1\n", "a count of -1.0 .*line 3, column 'u2'"),
        ("u1,u2\n0.5,1\n", "a count of 0.5 .*line 2, column 'u1'.*signals=True"),
        ("u1,u2\nnan,1\n", "a count of nan .*line 2, column 'u1'"),
        ("u1,u2\n0,3\n2\n", "1 cells for 2 columns .*line 3"),
        ("u1,u1\n0,3\n", "'u1' more than once .*header"),
        ("u1,u2\n", "0 rows"),
        ("time\n0\n", "0 columns of units"),
        ("", "header of unit names"),
        ("trial,u\n1,0\n2,0\n1,0\n", "trial '1' again.*line 4"),
        ("time,u\n0,0\n0.02,0\n0.06,0\n", "time 0.06, which is not 2 bins.*line 4"),
        ("time,u\n0,0\nnan,0\n", "time nan.*line 3"),
        ("time,u\nnan,0\n", "line 2, column 'time'"),
        ("time,u\nsoon,0\n", "'soon'.*line 2, column 'time'"),
        ('u1,u2\n0,"3\n', "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, says):
    with pytest.raises(InputError, match=says) as caught:
        read_arrays(write(tmp_path, text), 0.02)
    assert "day1.csv" in str(caught.value)


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_arrays(tmp_path / "a.csv", 0.02)


def test_the_bin_width_must_be_passed(tmp_path):
    with pytest.raises(InputError, match="as bin_width or --bin-width"):
        read_arrays(write(tmp_path, "u1\n0\n"))

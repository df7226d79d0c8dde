"""Files that cannot be used, each for one reason."""

from pathlib import Path

import h5py
import numpy as np

from tests.data.nwb_files import add_units, empty, session, write


def no_units(folder: Path) -> Path:
    return write(folder / "bad.nwb", empty())


def no_trials(folder: Path) -> Path:
    return write(folder / "bad.nwb", add_units(empty(), [[0.1, 0.5], [0.2]]))


def out_of_order(folder: Path) -> Path:
    return write(folder / "bad.nwb", add_units(empty(), [[0.1, 0.5], [0.4, 0.2]]))


def before_the_session(folder: Path) -> Path:
    return write(folder / "bad.nwb", add_units(empty(), [[-0.5, 0.5], [0.2]]))


def with_holes(folder: Path) -> Path:
    return session(folder / "bad.nwb")


def text_for_counts(folder: Path) -> Path:
    (folder / "bad.csv").write_text("a,b\n0,1\n2,many\n")
    return folder / "bad.csv"


def truncated(folder: Path) -> Path:
    with h5py.File(folder / "bad.h5", "w") as file:
        file["counts"] = np.ones((500, 4), int)
        file["bin_width"] = 0.02
    whole = (folder / "bad.h5").read_bytes()
    (folder / "bad.h5").write_bytes(whole[: len(whole) // 2])
    return folder / "bad.h5"


def truncated_nwb(folder: Path) -> Path:
    whole = session(folder / "bad.nwb").read_bytes()
    (folder / "bad.nwb").write_bytes(whole[: len(whole) // 2])
    return folder / "bad.nwb"


def empty_trial(folder: Path) -> Path:
    np.savez(folder / "bad.npz", counts=np.ones((4, 2), int), lengths=[2, 0, 2], bin_width=0.02)
    return folder / "bad.npz"


def nan_for_behaviour(folder: Path) -> Path:
    hand = np.where(np.arange(4) == 2, np.nan, 1.0)
    np.savez(folder / "bad.npz", counts=np.ones((4, 2), int), hand=hand, bin_width=0.02)
    return folder / "bad.npz"


def not_there(folder: Path) -> Path:
    return folder / "bad.npz"

"""Real recordings, which are not part of the repository."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

MAZE = "mc_maze_large_9cond_5ms.npz"
BIN_WIDTH, FACTOR, LEAST_RATE = 0.02, 4, 0.5


class Reaches(NamedTuple):
    """Trials of equal lengths: (trials, bins, units) and (trials, bins, 2)."""

    counts: np.ndarray
    velocity: np.ndarray
    position: np.ndarray
    conditions: np.ndarray


def find(name: str) -> Path:
    """The file of a name, or skip the test."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("EVKF_DATA", beside))
    if not (folder / name).is_file():
        pytest.skip(f"no {name} in {folder}; set EVKF_DATA to the folder that has it")
    return folder / name


def maze_reaches() -> Reaches:
    """MC_Maze_Large in bins of 20 ms, without units under 0.5 spikes per second."""
    with np.load(find(MAZE)) as file:
        arrays = [file[name] for name in ("counts", "hand_vel_mm_s", "hand_pos_mm")]
        conditions = file["trial_type"]
    wide = [a.reshape(len(a), -1, FACTOR, a.shape[-1]).astype(float) for a in arrays]
    counts, velocity, position = wide[0].sum(axis=2), wide[1].mean(axis=2), wide[2].mean(axis=2)
    enough = counts.mean(axis=(0, 1)) / BIN_WIDTH >= LEAST_RATE
    return Reaches(counts[..., enough], velocity, position, conditions)

"""Counts of trials of different lengths, of rates that follow a wave."""

import numpy as np

LENGTHS, UNITS = (3, 6, 4, 6), 5


def ragged(lengths=LENGTHS, seed=0):
    """Counts of all trials, end to end."""
    rng = np.random.default_rng(seed)
    wave = np.sin(np.arange(max(lengths))[:, None] / 4 + np.arange(UNITS))
    return np.vstack([rng.poisson(np.exp(1 + wave[:n] * rng.normal())) for n in lengths])


def cut(counts, lengths=LENGTHS):
    """Return a list of trials."""
    return np.split(counts, np.cumsum(lengths)[:-1])

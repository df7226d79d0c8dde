"""Reaching (fig:mc_maze): filter the activity of motor cortex, and decode the hand's velocity.

A model is trained on one half of the trials (the training half). It is trained in two ways: on
latent states found by GPFA (Gaussian-process factor analysis), as in the paper, and by maximising
our own bound. The other half (the test half) is then filtered causally, once and in order: with a
frozen model, and with a model that goes on learning. Hand velocity is decoded from the inferred
firing rates by ridge regression. The regression is fitted to the training half, and its penalty is
chosen by cross-validation inside that half. Commonly used methods are run on the same trials for
comparison.
"""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evkf.analysis.decoding import r2
from evkf.data import Reading, Recording, list_nwb, open_recording
from evkf.dynamics import ResidualMLP
from evkf.errors import InputError
from evkf.expectations.readout import expected_observation
from evkf.learning import Learner, LearnerState, StateFitting, fit_states, warm_up
from evkf.model import Model
from evkf.recordings.halves import Halves, Pair, halve, spikes
from evkf.recordings.scoring import Progress, Score, baselines, evkf, fit_gpfa, make_rows
from evkf.recordings.units import UnitModel, fit_recording, infer, names

LATENTS, NETWORK, MIN_RATE, BIN_WIDTH = 12, 64, 0.5, 0.02
"""Number of latents, number of hidden units of the network, lowest firing rate, and bin width in
seconds. The values are ours, from a prototype. Units that fire fewer than MIN_RATE spikes per
second are left out."""
HIDDEN_SHARE = 40 / 146
"""Share of the units that are hidden from the filter (held out), for co-smoothing."""
TRIALS = 250
"""Number of trials in each half if the recording has enough trials, as in the paper."""
ONSET, WINDOW = "move_onset_time", (-0.05, 0.45)
"""Event to which the trials of NWB files are aligned, and the window around it in seconds. They are
the same as in the MC_Maze subset."""
VELOCITIES = ("hand_vel", "hand_vel_mm_s", "finger_vel")
CONDITIONS = ("trial_type", "condition", "target")
"""Names of the condition column that are tried if none is given."""

SUBSET = "mc_maze_large_9cond_5ms.npz"
"""File name of the MC_Maze subset. The targets apply only to this recording."""
TARGETS = {"rates_r2": 0.83, "learning_gain": -0.005, "co_smoothing": 0.165}
"""Lowest allowed values: R² of velocity decoded from rates, R² with learning on minus R² with the
frozen model, and bits per spike of held-out units."""

BLOCK = 10
"""Number of trials after which the decoder is fitted again while learning goes on."""

LEARNING, FIXED = "eVKF, learning on", "eVKF, learning on, decoder fixed"
ON_GPFA = "eVKF on GPFA states"


class FitEffort(NamedTuple):
    """Numbers of passes and steps by which models are fitted."""

    passes: int | None = None
    """Passes over the training half when a model is trained by the bound. None chooses the number
    by the size of the half."""
    em_steps: int = 100
    steps: int = 3000
    """Gradient steps that fit a model to latent states from GPFA."""


FULL, QUICK = FitEffort(), FitEffort(5, 10, 300)


class Reaches(NamedTuple):
    """A recording of reaches, and the names of the columns to use."""

    recording: Recording
    velocity: str
    condition: str | None
    event: str = "trial start"
    """Name of the event at time zero."""
    when: float = 0.0
    """Time of the event in seconds after the start of a trial."""
    subset: bool = False
    """True if the recording is the MC_Maze subset."""

    @property
    def position(self) -> str | None:
        """Name of the hand's position. None if it is not recorded, or is missing in some bins."""
        name, behaviour = position_name(self.velocity), self.recording.behaviour
        return name if name in behaviour and np.isfinite(behaviour[name]).all() else None


def read_reaches(
    path: str | Path, velocity: str | None = None, condition: str | None = None
) -> Reaches:
    """Read a recording of reaches, and return it in bins of 20 ms.

    Units that fire fewer than 0.5 spikes per second are left out. Raise InputError if the recording
    has fewer than four trials, or no hand velocity of two coordinates.

    Args:
        path: Path of the recording: NWB (from the Neural Latents Benchmark or elsewhere), or npz,
            HDF5 or CSV that contain spike counts.
        velocity: Name of the hand velocity. By default, the first of `VELOCITIES` in the recording.
        condition: Name of the trial column that holds the condition. By default, the first of
            `CONDITIONS` in the recording, if there is one.
    """
    event, when, subset = "trial start", 0.0, Path(path).name == SUBSET
    if Path(path).suffix == ".nwb":
        contents = list_nwb(path)
        names = {name.rpartition("/")[2]: name for name in contents["behaviour"]}
        velocity = velocity or _velocity(path, names)
        position = names.get(position_name(velocity))
        wanted = [velocity] if position is None else [velocity, position]
        align, window = "start_time", None
        if ONSET in contents["trial_columns"]:
            align, window, event, when = ONSET, WINDOW, "movement onset", -WINDOW[0]
        reading = Reading(BIN_WIDTH, align, window, wanted, MIN_RATE)
        recording = open_recording(path, reading)
    else:
        recording = open_recording(path, bin_width=BIN_WIDTH, min_rate=MIN_RATE)
        velocity = velocity or _velocity(path, recording.behaviour)
        if subset:
            event, when = "movement onset", -WINDOW[0]
    condition = condition or next((name for name in CONDITIONS if name in recording.trials), None)
    if recording.num_trials < 4:
        what = f"{recording.num_trials} trials"
        raise InputError(what, f"{path}: trials", "pass a recording of four or more")
    reaches = Reaches(recording, velocity.rpartition("/")[2], condition, event, when, subset)
    values = recording.behaviour.get(reaches.velocity)
    if values is not None and values.shape[1:] != (2,):
        what = f"{reaches.velocity} of shape {values.shape}"
        raise InputError(what, f"{path}: behaviour", "name a velocity of two coordinates")
    return reaches


def _velocity(path: str | Path, names: Collection[str]) -> str:
    """Return the first name of `VELOCITIES` that is in `names`.

    Raise InputError if there is none.
    """
    velocity = next((name for name in VELOCITIES if name in names), None)
    if velocity is None:
        remedy = f"name it with --behaviour; there are {', '.join(names) or 'none'}"
        raise InputError("no velocity of a hand", f"{path}: behaviour", remedy)
    return velocity


def position_name(velocity: str) -> str:
    """Return the name of the hand position that belongs to a hand velocity.

    Example:
        >>> position_name("hand_vel"), position_name("hand_vel_mm_s")
        ('hand_pos', 'hand_pos_mm')
    """
    return velocity.rpartition("/")[2].replace("vel", "pos").removesuffix("_s")


def split(reaches: Reaches, seed: int) -> Halves:
    """Split the trials at random into a training half and a test half, and return the halves.

    Each half has 250 trials if the recording has at least 500. Otherwise the recording is cut in
    half.

    Args:
        reaches: The recording.
        seed: Seed of the random order.
    """
    num = reaches.recording.num_trials
    order = np.random.default_rng(seed).permutation(num)
    half, end = (TRIALS, 2 * TRIALS) if num >= 2 * TRIALS else (num // 2, num)
    train, test = order[:half], order[half:end]
    names = reaches.condition, reaches.velocity
    return halve(reaches.recording, train, test, *names, seed, HIDDEN_SHARE)


def one_seed(
    reaches: Reaches, seed: int, effort: FitEffort = FULL, progress: Progress | None = None
) -> tuple[list[Score], Halves, UnitModel]:
    """Run the reaching experiment for one seed.

    Args:
        reaches: The recording.
        seed: Seed of the split into halves and of the model.
        effort: Numbers of passes and steps.
        progress: Function that is told the progress of the computation.

    Returns:
        One row of scores for each method, the halves, and the model trained by the bound.
    """
    parts = split(reaches, seed)
    model = fit_recording(parts.train, LATENTS, hidden=NETWORK, passes=effort.passes, seed=seed)
    makers = [
        lambda: evkf(parts, model),
        lambda: learning_on(parts, model),
        lambda: learning_on(parts, model, follow=False),
        lambda: on_gpfa_states(parts, model, effort, seed),
        *baselines(parts, model, effort.passes, effort.em_steps),
    ]
    return make_rows(makers, progress), parts, model


def learning_on(parts: Halves, model: UnitModel, follow: bool = True) -> Score:
    """Filter the test half once, in order, while learning goes on, and return the scores.

    Args:
        parts: The training half and the test half.
        model: Model from which learning starts.
        follow: Whether to fit the decoder again every `BLOCK` trials. The new decoder is fitted to
            the rates and latents that the current model infers in the training half. If False, the
            first decoder is kept.
    """
    assert model.estimator is not None
    assert parts.behaviour is not None
    test = parts.test
    state = model.estimator.state_._replace(fresh=jnp.asarray(True))
    none, dtype = jnp.zeros((test.num_bins, 0)), state.ring.bins.y.dtype
    bins = (jnp.asarray(test.counts, dtype), jnp.asarray(test.masks), none, jnp.asarray(test.fresh))
    means, counts, models = _stream(model.estimator.learner_, state, bins)
    now = Pair(np.asarray(counts) / test.bin_width, np.asarray(means))
    edges = np.concatenate([[0], np.cumsum(test.lengths)])
    starts = edges[:-1:BLOCK] if follow else edges[:1]
    decoded = []
    for first, last in zip(starts, [*starts[1:], edges[-1]], strict=True):
        moment = jax.tree.map(lambda leaf, first=first: leaf[first], models)
        train = infer(model._replace(model=moment), parts.train)
        assert train.rates is not None
        pairs = zip((train.rates, train.mean), now, strict=True)
        decoded.append([parts.decoded(Pair(old, new[first:last])) for old, new in pairs])
    rates, latents = (np.concatenate(blocks) for blocks in zip(*decoded, strict=True))
    truth = test.behaviour[parts.behaviour]
    return Score(
        LEARNING if follow else FIXED, rates_r2=r2(truth, rates), latents_r2=r2(truth, latents)
    )


@jax.jit
def _stream(learner: Learner, state: LearnerState, bins: tuple) -> tuple[Array, Array, Model]:
    """Filter and learn from bins in order, and return three arrays per bin.

    They are the filtered means, the expected counts, and the model that filtered the bin (before
    learning from the bin).
    """

    def body(state: LearnerState, bin: tuple) -> tuple[LearnerState, tuple]:
        state, _ = learner.observe(state, *bin)
        model, belief = state.model, state.filter.belief
        result = model.family.mean(belief), expected_observation(model, belief), model
        return learner.learn(state)[0], result

    return jax.lax.scan(body, state, bins)[1]


def on_gpfa_states(parts: Halves, model: UnitModel, effort: FitEffort, seed: int) -> Score:
    """Fit dynamics and readout to latent states from GPFA, as the paper does; return the scores.

    The readout is the weights and offsets of the likelihood. The fitted model filters the test
    half.

    Args:
        parts: The training half and the test half.
        model: Model whose filter is used.
        effort: Numbers of EM steps for GPFA, and of gradient steps.
        seed: Seed of the initial network.
    """
    train = parts.train
    states = fit_gpfa(parts, LATENTS, effort.em_steps).latents(parts).train
    latents = states.shape[1]
    masks, fresh = train.masks, train.fresh
    readout = warm_up(spikes(train), latents, "poisson", train.bin_width, masks, fresh)
    start = Model(ResidualMLP(latents, 0.04, jax.random.key(seed), NETWORK), readout)
    fitted = fit_states(
        start,
        states / states.std(axis=0),
        spikes(train),
        masks=masks,
        fresh=fresh,
        settings=StateFitting(steps=effort.steps),
    )
    return evkf(parts, UnitModel(fitted, model.filter, names(train), train.bin_width), ON_GPFA)


def summarise(rows: list[list[Score]]) -> list[dict[str, Any]]:
    """Return the mean of every score over seeds, with standard errors if there are several seeds.

    Args:
        rows: For each seed, the scores of all methods.

    Example:
        >>> summarise([[Score("a", one_step=1.0)], [Score("a", one_step=3.0)]])[0]["one_step"]
        {'mean': 2.0, 'error': 1.0}
    """
    means = []
    for scores in zip(*rows, strict=True):
        entry: dict[str, Any] = {"method": scores[0].method}
        for column in Score._fields[1:]:
            values = [getattr(score, column) for score in scores]
            if None in values:
                entry[column] = None
                continue
            many = len(values) > 1
            error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if many else None
            entry[column] = {"mean": float(np.mean(values)), "error": error}
        means.append(entry)
    return means


def shortfalls(means: list[dict[str, Any]]) -> list[str]:
    """Return one message for each target of the reaching experiment that is missed.

    Args:
        means: Means over seeds, from `summarise`.
    """
    rows = {row["method"]: row for row in means}
    own = rows["eVKF"]
    rates = own["rates_r2"]["mean"]
    reached = {
        "rates_r2": rates,
        "learning_gain": rows[LEARNING]["rates_r2"]["mean"] - rates,
        "co_smoothing": own["co_smoothing"]["mean"],
    }
    missed = [name for name, least in TARGETS.items() if not reached[name] >= least]
    return [f"{name}: {reached[name]:.4f}, target {TARGETS[name]:g}" for name in missed]

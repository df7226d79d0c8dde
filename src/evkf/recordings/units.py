"""A model that knows the units it was made from: fitted to a recording, used on others.

Readout row n belongs to unit n of the recording it was fitted to. A recording with other units is
refused, unless a map says which are the same; rows for the rest are then found from the states that
the known ones tell.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from evkf.data import Recording
from evkf.data.storage import read_meta
from evkf.dynamics import Dynamics
from evkf.errors import InputError
from evkf.estimators.evkf import EVKF
from evkf.estimators.settings import Learning
from evkf.estimators.trials import Trials, estimate_trials, read_trials
from evkf.filters import VariationalKalmanFilter
from evkf.learning.warm_up import fit_readout
from evkf.likelihoods import Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from evkf.model import Model

BINS_OF_TRAINING, MOST_PASSES, LEAST_PASSES = 200_000, 60, 3
"""How often a recording is gone through: short ones often, long ones less."""


class Inferred(NamedTuple):
    """What a model makes of every bin of a recording, as NumPy arrays.

    Attributes:
        mean: Means of the states, given all bins of the trial up to each.
        cov: Their covariances.
        rates: Expected spikes per second of every unit at those states; of continuous signals their
            expected values.
        predicted: Expected counts or values of every unit, before the bin was seen.
        elbo: Bounds on the log evidence; 0 where nothing was observed.
        variance: Variances of the counts before the bin was seen, where they were asked for.
    """

    mean: Float[np.ndarray, "T L"]
    cov: Float[np.ndarray, "T L L"]
    rates: Float[np.ndarray, "T N"]
    predicted: Float[np.ndarray, "T N"]
    elbo: Float[np.ndarray, " T"]
    variance: Float[np.ndarray, "T N"] | None = None


class UnitModel(NamedTuple):
    """An estimator, and which units and bins it is for."""

    model: Model
    filter: VariationalKalmanFilter
    units: tuple[str, ...]
    bin_width: float
    estimator: EVKF | None = None
    """What learned it, if it was not mapped to other units."""
    fitted: Mapping[str, Any] | None = None
    """What it was fitted to, as `fitted_to` tells; of `evkf fit` also how trials were cut."""

    @property
    def signals(self) -> bool:
        """Whether it is for continuous signals, not for spikes."""
        return isinstance(self.model.likelihood, Gaussian | StudentT)

    @property
    def per_rate(self) -> float:
        """What expected observations are divided by to give rates."""
        return 1.0 if self.signals else self.bin_width

    def save(self, path: str | os.PathLike) -> None:
        """Write it to a .safetensors file."""
        if self.estimator is None:
            remedy = "save the model it was mapped from"
            raise InputError("a model mapped to other units", str(path), remedy)
        note = {"units": list(self.units), "bin_width": self.bin_width}
        note |= {} if self.fitted is None else {"fitted": dict(self.fitted)}
        self.estimator.save(path, note)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        likelihood: Likelihood | None = None,
        dynamics: Dynamics | None = None,
    ) -> Self:
        """Read what `save` wrote.

        Args:
            path: The file.
            likelihood: If `fit_recording` was given one and not a name, one of that kind and size.
                Its numbers are not used: all are in the file.
            dynamics: The same for dynamics.
        """
        note = read_meta(path).get("note", {})
        if "units" not in note:
            raise InputError("a model without units", str(path), "load what `evkf fit` wrote")
        estimator = EVKF.load(path, likelihood, dynamics)
        units, width, fitted = tuple(note["units"]), note["bin_width"], note.get("fitted")
        return cls(*_parts(estimator), units, width, estimator, fitted)


def names(recording: Recording) -> tuple[str, ...]:
    """The ids of units as text."""
    return tuple(str(unit) for unit in recording.units["id"])


def fitted_to(recording: Recording) -> dict[str, Any]:
    """What a model remembers of the recording it was fitted to: its file, and when trials were.

    Example:
        >>> fitted_to(Recording(np.ones((3, 1), int), 0.5, (1, 2), source="data/day1.nwb"))
        {'source': 'day1.nwb', 'starts': [0.0, 0.5], 'stops': [0.5, 1.5]}
    """
    stops = recording.start_times + recording.bin_width * np.asarray(recording.lengths)
    name = os.path.basename(recording.source)
    return {"source": name, "starts": recording.start_times.tolist(), "stops": stops.tolist()}


def trials_seen(model: UnitModel, recording: Recording) -> Bool[np.ndarray, " K"]:
    """Trials that the model was fitted to at least half of, where names of files are the same."""
    known, here = model.fitted, fitted_to(recording)
    starts, stops = np.array(here["starts"]), np.array(here["stops"])
    seen = np.zeros(len(starts))
    if known is not None and known["source"] == here["source"]:
        for start, stop in zip(known["starts"], known["stops"], strict=True):
            seen += np.maximum(np.minimum(stop, stops) - np.maximum(start, starts), 0)
    return seen >= (stops - starts) / 2


def passes_for(recording: Recording) -> int:
    """How often a recording is gone through unless told."""
    return int(np.clip(BINS_OF_TRAINING // recording.num_bins, LEAST_PASSES, MOST_PASSES))


def fit_recording(
    recording: Recording,
    latents: int,
    likelihood: str | Likelihood = "poisson",
    dynamics: str | Dynamics = "mlp",
    hidden: int = 64,
    learn: Sequence[str] | None = None,
    passes: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> UnitModel:
    """Learn readout, dynamics, noise and initial state from a recording.

    Args:
        recording: The recording; every trial begins at the initial state.
        latents: Latent dimensions.
        likelihood: "poisson", "negative_binomial", "bernoulli" or "gaussian"; or one of
            `evkf.likelihoods`, or of your own, to begin with.
        dynamics: "mlp", a network; or one of `evkf.dynamics`.
        hidden: Hidden units of the network.
        learn: What is learned, of "dynamics", "noise", "readout", "observation" and "prior". When
            left out all, but nothing of a likelihood that was not given by name.
        passes: How often the recording is gone through; when left out, 60 times for short
            recordings and fewer for long ones.
        seed: Of all randomness.
        progress: Told after every pass how many of how many are done.

    Example:
        >>> counts = np.random.default_rng(0).poisson(1.0, (200, 5))
        >>> model = fit_recording(Recording(counts, bin_width=0.02), latents=1, passes=2)
        >>> infer(model, Recording(counts, bin_width=0.02)).rates.shape
        (200, 5)
    """
    passes = passes_for(recording) if passes is None else passes
    warm_up = max(recording.num_bins, latents + 1)
    learning = Learning(hidden=hidden, parts=learn, warm_up=warm_up, passes=passes)
    width = recording.bin_width
    estimator = EVKF(latents, likelihood, dynamics, width, learning=learning, seed=seed)
    told = None if progress is None else lambda done: progress(done, passes)
    trials, masks = recording.split(recording.counts), recording.split(recording.masks)
    estimator.fit(trials, masks=masks, progress=told)
    return UnitModel(
        *_parts(estimator),
        names(recording),
        recording.bin_width,
        estimator,
        fitted_to(recording),
    )


def _parts(estimator: EVKF) -> tuple[Model, VariationalKalmanFilter]:
    return estimator.model_, estimator.learner_.filter


def infer(
    model: UnitModel, recording: Recording, hide: Bool[np.ndarray, " N"] | None = None
) -> Inferred:
    """Filter a recording; nothing is learned.

    Args:
        model: The model.
        recording: A recording of the same units, in the same order, and of the same bin width.
        hide: Units that the filter is not shown; what is expected of them is told all the same.
    """
    check_units(model, recording)
    masks = recording.masks if hide is None else recording.masks & ~np.asarray(hide)
    trials = read_trials(model.model, recording.split(recording.counts), recording.split(masks))
    return infer_trials(model, trials)


def infer_trials(model: UnitModel, trials: Trials) -> Inferred:
    """The same of what `read_trials` gave, which may be trials of several recordings."""
    key = jax.random.key(0)
    found = estimate_trials(model.filter, model.model, trials, key, per=model.per_rate)
    assert found.rates is not None
    assert found.predicted is not None
    return Inferred(found.mean, found.cov, found.rates, found.predicted, found.elbo)


def check_units(model: UnitModel, recording: Recording) -> None:
    """Refuse a recording of other units or of another bin width."""
    _check_width(model, recording)
    have = names(recording)
    if have == model.units:
        return
    strange = [unit for unit in have if unit not in model.units]
    absent = [unit for unit in model.units if unit not in have]
    what = "the model's units in another order"
    if strange or absent:
        said = [f"{len(strange)} units that the model does not know"] * bool(strange)
        said += [f"{len(absent)} units of the model are missing from the file"] * bool(absent)
        example = (strange or absent)[0]
        what = f"{' and '.join(said)} (such as {example!r})"
    remedy = (
        "if the model was fitted with --units or --min-rate, pass the same; else fit a model of "
        "its own, or say which units are the same with a unit map"
    )
    raise InputError(what, f"{recording.source}: units", remedy)


def _check_width(model: UnitModel, recording: Recording) -> None:
    own, width = model.bin_width, recording.bin_width
    if abs(width - own) > 1e-6 * own:
        what = f"bins of {width:g} s for a model of bins of {own:g} s"
        remedy = f"read it with --bin-width {own:g}, or fit a model of its own"
        raise InputError(what, f"{recording.source}: bin_width", remedy)


def map_units(model: UnitModel, recording: Recording, same: Mapping[str, str]) -> UnitModel:
    """The model for a recording of other units.

    Units of the recording that are mapped keep their readout. Rows of the others are fitted to
    their counts at the states that the mapped ones tell.

    Args:
        model: The model.
        recording: The recording.
        same: Units of the recording to the units of the model that they are.
    """
    _check_width(model, recording)
    have, where = names(recording), "unit map"
    _check_map(same, have, model.units, where)
    likelihood = model.model.likelihood
    kind = {Poisson: "poisson", NegativeBinomial: "negative_binomial"}.get(type(likelihood))
    softplus = isinstance(likelihood, Poisson) and likelihood.link != "exp"
    if kind is None or softplus:
        what = f"a map for {type(likelihood).__name__} observations" + softplus * " (softplus)"
        remedy = "map units of counts with an exponential link: poisson or negative_binomial"
        raise InputError(what, where, remedy)
    known = np.array([unit in same for unit in have])
    rows = np.array([model.units.index(same[unit]) for unit in have if unit in same])
    mapped = _with_likelihood(model, _rows(likelihood, rows), np.array(have)[known])
    if known.all():
        return mapped
    states = infer(mapped, recording.pick(known)).mean
    new, width = recording.pick(~known), recording.bin_width
    fitted = fit_readout(kind, states, new.counts, new.masks, width)
    order = np.argsort(np.concatenate([np.flatnonzero(known), np.flatnonzero(~known)]))
    whole = jax.tree.map(
        lambda one, other: one if one.ndim == 0 else jnp.concatenate([one, other])[order],
        mapped.model.likelihood,
        fitted,
    )
    return _with_likelihood(model, whole, have)


def _with_likelihood(model: UnitModel, likelihood: Likelihood, units: Any) -> UnitModel:
    other = eqx.tree_at(lambda m: m.likelihood, model.model, likelihood)
    names = tuple(str(unit) for unit in units)
    return UnitModel(other, model.filter, names, model.bin_width, fitted=model.fitted)


def _check_map(
    same: Mapping[str, str], have: Sequence[str], known: Sequence[str], where: str
) -> None:
    for unit, target in same.items():
        if unit not in have:
            raise InputError(f"unit {unit!r}", where, "name units of the recording")
        if target not in known:
            raise InputError(f"unit {target!r}", where, "map to units of the model")
    if not same:
        raise InputError("no units", where, "map one or more")
    if len(set(same.values())) < len(same):
        raise InputError("a unit of the model twice", where, "map to each at most once")


def _rows(likelihood: Likelihood, rows: np.ndarray) -> Any:
    """The likelihood of some of the channels."""
    return jax.tree.map(lambda leaf: leaf if leaf.ndim == 0 else leaf[rows], likelihood)

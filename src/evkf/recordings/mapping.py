"""Adapt a model to a recording of other units, for `evkf filter` with a unit map.

Some units of the recording must be units that the model knows, possibly under other names. A unit
map says which. New units get a readout (weights and offset that relate latent states to counts)
that is fitted to the recording; dynamics and noise stay the same.
"""

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from evkf.data.recording import Recording
from evkf.errors import InputError
from evkf.learning.warm_up import fit_readout
from evkf.likelihoods import Likelihood, NegativeBinomial, Poisson
from evkf.recordings.units import UnitModel, check_width, infer, names


def map_units(model: UnitModel, recording: Recording, same: Mapping[str, str]) -> UnitModel:
    """Return a model for the units of a recording, some of which the given model knows.

    Units of the recording that are in the map take their readout (weights and offset) from the
    model. First, latent states are inferred from these units. Then the readout of the remaining
    units is fitted to the counts of these remaining units, given the inferred latent states. Units
    of the model that are not in the map are dropped.

    Raise InputError if the map is empty or names unknown units, if two units are mapped to the same
    unit of the model, or if the likelihood is neither Poisson nor negative binomial with an
    exponential link.

    Args:
        model: The model, fitted to other units.
        recording: The recording, of the same bin width as the model.
        same: The unit map: keys are ids of units of the recording, values are ids of the same units
            in the model.

    Returns:
        The adapted model, whose units are all units of the recording in their order.
    """
    check_width(model, recording)
    have, where = names(recording), "unit map"
    for unit, target in same.items():
        if unit not in have:
            raise InputError(f"unit {unit!r}", where, "name units of the recording")
        if target not in model.units:
            raise InputError(f"unit {target!r}", where, "map to units of the model")
    if not same:
        raise InputError("no units", where, "map one or more")
    if len(set(same.values())) < len(same):
        raise InputError("a unit of the model twice", where, "map to each at most once")
    likelihood = model.model.likelihood
    kind = {Poisson: "poisson", NegativeBinomial: "negative_binomial"}.get(type(likelihood))
    softplus = isinstance(likelihood, Poisson) and likelihood.link != "exp"
    if kind is None or softplus:
        what = f"a map for {type(likelihood).__name__} observations" + softplus * " (softplus)"
        remedy = "map units of counts with an exponential link: poisson or negative_binomial"
        raise InputError(what, where, remedy)

    def with_likelihood(likelihood: Likelihood, units: Sequence[str]) -> UnitModel:
        other = eqx.tree_at(lambda m: m.likelihood, model.model, likelihood)
        return model._replace(model=other, units=tuple(units), estimator=None)

    mapped = np.array([unit in same for unit in have])
    rows = np.array([model.units.index(same[unit]) for unit in have if unit in same])
    own = jax.tree.map(lambda leaf: leaf if leaf.ndim == 0 else leaf[rows], likelihood)
    some = with_likelihood(own, [unit for unit in have if unit in same])
    if mapped.all():
        return some
    states = infer(some, recording.pick(mapped)).mean
    new, width = recording.pick(~mapped), recording.bin_width
    fitted = fit_readout(kind, states, new.counts, new.masks, width)
    order = np.argsort(np.concatenate([np.flatnonzero(mapped), np.flatnonzero(~mapped)]))
    whole = jax.tree.map(
        lambda one, other: one if one.ndim == 0 else jnp.concatenate([one, other])[order],
        own,
        fitted,
    )
    return with_likelihood(whole, have)

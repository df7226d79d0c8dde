"""A model for the units of another recording, some of which are the same, for `evkf filter`."""

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
    """Return the model for a recording of other units.

    Mapped units of the recording keep their readout. Rows of the others are fitted to their counts
    at the states inferred from the mapped units.

    Args:
        model: The model.
        recording: The recording.
        same: Units of the recording to the units of the model that they are.
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

"""Models that know their units: fitted, stored, refused, mapped."""

from functools import partial

import jax
import numpy as np
import pytest

from evkf.analysis.spike_metrics import bits_per_spike
from evkf.cli.console import load_model
from evkf.data import Recording
from evkf.dynamics import VanDerPol
from evkf.errors import InputError
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate
from evkf.recordings.mapping import map_units
from evkf.recordings.units import UnitModel, fit_recording, infer
from tests.quick import quick_compilation  # noqa: F401

N = 30


@pytest.fixture(scope="module")
def whole() -> Recording:
    rng = np.random.default_rng(0)
    C = rng.normal(size=(N, 2))
    true = Model(VanDerPol(1.5), Poisson(C, np.full(N, 3.5), bin_width=0.02))
    trials = [simulate(true, jax.random.key(k), bins)[1] for k, bins in enumerate((150, 250, 200))]
    ids = np.array([f"u{n}" for n in range(N)])
    return Recording(
        np.concatenate(trials).astype(int),
        0.02,
        tuple(len(trial) for trial in trials),
        units={"id": ids},
        source="spikes.nwb",
    )


@pytest.fixture(scope="module")
def fitted(whole):
    told = []
    model = fit_recording(whole, 2, hidden=16, passes=4, progress=lambda *x: told.append(x))
    assert told == [(k, 4) for k in range(1, 5)]
    return model


def test_rates_and_predictions_tell_about_the_counts(whole, fitted):
    found = infer(fitted, whole)
    assert bits_per_spike(whole.counts, found.rates * 0.02) > 0.3
    assert bits_per_spike(whole.counts, found.predicted) > 0.2
    np.testing.assert_allclose(
        found.mean, np.concatenate(fitted.estimator.transform(whole.split(whole.counts))), atol=1e-5
    )


def test_units_that_are_hidden_are_told_from_the_others(whole, fitted):
    hide = np.arange(N) < 5
    found = infer(fitted, whole, hide)
    other = Recording(np.where(hide, 99, whole.counts), 0.02, whole.lengths, units=whole.units)
    np.testing.assert_array_equal(found.rates, infer(fitted, other, hide).rates)
    assert bits_per_spike(whole.counts[:, hide], 0.02 * found.rates[:, hide]) > 0.2


def test_what_was_stored_infers_the_same(whole, fitted, tmp_path):
    fitted.save(tmp_path / "model.safetensors")
    loaded = UnitModel.load(tmp_path / "model.safetensors")
    quick = UnitModel.load(tmp_path / "model.safetensors", learner=False)
    assert quick.estimator is None
    for each in (loaded, quick):
        assert (each.units, each.bin_width, each.fitted) == (fitted.units, 0.02, fitted.fitted)
        assert each.filter == fitted.filter
        np.testing.assert_array_equal(infer(each, whole).mean, infer(fitted, whole).mean)


def test_other_units_and_bins_are_refused(whole, fitted):
    for other, says in (
        (
            whole.pick(np.arange(N - 1)),
            "1 units of the model are missing from the file .*--min-rate",
        ),
        (whole.pick(np.arange(N)[::-1]), "another order"),
        (whole.rebinned(2), "bins of 0.04 s"),
    ):
        with pytest.raises(InputError, match=says) as caught:
            infer(fitted, other)
        assert "spikes.nwb" in str(caught.value)


def test_mapped_units_keep_their_readout_and_new_ones_find_theirs(whole, fitted):
    order = np.random.default_rng(1).permutation(N)
    other = whole.pick(order)
    ids = np.array([f"new{n}" for n in range(N)])
    other = Recording(other.counts, 0.02, other.lengths, units={"id": ids})
    same = {f"new{n}": f"u{order[n]}" for n in range(N)}
    mapped = map_units(fitted, other, same)
    assert mapped.fitted == fitted.fitted is not None
    np.testing.assert_allclose(infer(mapped, other).mean, infer(fitted, whole).mean, atol=1e-4)
    few = {unit: target for unit, target in same.items() if unit not in ("new3", "new20")}
    mapped = map_units(fitted, other, few)
    found = infer(mapped, other)
    for n in (3, 20):
        ours = bits_per_spike(other.counts[:, [n]], 0.02 * found.rates[:, [n]])
        theirs = infer(fitted, whole).rates[:, [order[n]]]
        assert ours > bits_per_spike(other.counts[:, [n]], 0.02 * theirs) - 0.1


@pytest.mark.parametrize(
    ("same", "says"),
    [
        ({}, "one or more"),
        ({"x": "u1"}, "of the recording"),
        ({"u1": "x"}, "of the model"),
        ({"u1": "u2", "u3": "u2"}, "at most once"),
    ],
)
def test_a_map_that_does_not_fit(whole, fitted, same, says):
    with pytest.raises(InputError, match=says):
        map_units(fitted, whole, same)


class Noisy(Poisson):
    """A likelihood of one's own."""


def test_a_likelihood_of_ones_own_is_named_again_to_load(whole, tmp_path):
    path, C = tmp_path / "own.safetensors", np.random.default_rng(3).normal(size=(N, 2))
    start = Noisy(C, np.full(N, 3.5), bin_width=0.02)
    own = fit_recording(whole, 2, start, hidden=4, passes=1)
    own.save(path)
    same = UnitModel.load(path, likelihood=Noisy(np.zeros((N, 2))))
    np.testing.assert_array_equal(infer(same, whole).mean, infer(own, whole).mean)
    for load in (UnitModel.load, load_model, partial(load_model, learner=False)):
        with pytest.raises(InputError, match=r"pass likelihood=Noisy\(.*Commands cannot") as caught:
            load(path)
    assert "own.safetensors" in str(caught.value)
    with pytest.raises(InputError, match="leave dynamics out"):
        UnitModel.load(path, likelihood=start, dynamics=VanDerPol())

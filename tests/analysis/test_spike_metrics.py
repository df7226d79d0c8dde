"""Spike metrics against their definitions, and that each can tell a good model from a bad one."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d
from scipy.stats import kstest, nbinom, poisson

from evkf.analysis.spike_metrics import (
    FLOOR,
    Dispersion,
    bits_per_spike,
    condition_averages,
    dispersion,
    dispersion_hint,
    over_dispersed,
    pit,
    psth_r2,
    smooth_trials,
)
from evkf.errors import InputError

BINS, UNITS = 4000, 5


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    rates = np.exp(np.sin(np.arange(BINS)[:, None] / 7 + np.arange(UNITS)) - 0.5)
    return rng.poisson(rates), rates


def test_bits_per_spike_by_hand(data):
    counts, rates = data
    mean = np.broadcast_to(counts.mean(axis=0), counts.shape)
    gain = poisson.logpmf(counts, rates).sum() - poisson.logpmf(counts, mean).sum()
    np.testing.assert_allclose(bits_per_spike(counts, rates), gain / np.log(2) / counts.sum())
    assert bits_per_spike(counts, rates) > 0.1
    assert bits_per_spike(counts, rates) > bits_per_spike(counts, rates**0.7)
    assert abs(bits_per_spike(counts, mean)) < 1e-12
    assert bits_per_spike(counts, np.roll(rates, 20, axis=0)) < 0


def test_bits_per_spike_of_masks_and_references(data):
    counts, rates = data
    masks = np.zeros(counts.shape, bool)
    masks[:1000, :3] = True
    alone = bits_per_spike(counts[:1000, :3], rates[:1000, :3])
    np.testing.assert_allclose(bits_per_spike(counts, rates, masks), alone)
    hidden = np.where(masks, counts, np.nan), np.where(masks, rates, -1)
    np.testing.assert_allclose(bits_per_spike(*hidden, masks), alone)
    assert bits_per_spike(counts, rates, reference=rates) == 0
    worse = bits_per_spike(counts, rates, reference=np.full(UNITS, 3.0))
    assert worse > bits_per_spike(counts, rates)


def test_a_spike_where_none_was_expected_costs_much_but_not_everything():
    cost = bits_per_spike([[1]], [[0.0]], reference=[[1.0]])
    np.testing.assert_allclose(cost, (np.log(FLOOR) + 1) / np.log(2), rtol=1e-6)
    assert np.isfinite(bits_per_spike([[1, 0], [0, 0]], np.zeros((2, 2))))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.1])
def test_impossible_numbers_are_refused_unless_masked(bad):
    counts, expected = np.ones((3, 2)), np.ones((3, 2))
    expected[1, 1] = bad
    for measure in (bits_per_spike, pit, dispersion):
        with pytest.raises(InputError, match=r"\[1, 1\]"):
            measure(counts, expected)
        with pytest.raises(InputError, match=r"counts\[1, 1\]"):
            measure(expected, counts)
    masks = np.isin(np.arange(6).reshape(3, 2), [3], invert=True)
    assert np.isfinite(bits_per_spike(counts, expected, masks))


def test_what_does_not_fit_is_refused():
    ones = np.ones((3, 2))
    with pytest.raises(InputError, match="shape of the counts"):
        bits_per_spike(ones, np.ones((3, 1)))
    with pytest.raises(InputError, match="True where observed"):
        bits_per_spike(ones, ones, np.ones((3, 2)))
    with pytest.raises(InputError, match="no spikes"):
        bits_per_spike(0 * ones, ones)
    with pytest.raises(InputError, match="reference"):
        bits_per_spike(ones, ones, reference=np.ones(3))
    with pytest.raises(InputError, match="not whole"):
        pit(ones / 2, ones)
    with pytest.raises(InputError, match="sum to 1"):
        pit(ones, np.ones((3, 2, 4)))
    with pytest.raises(InputError, match="conditions"):
        psth_r2(ones, ones, (3,), [0, 1], 0.02)


def test_psth_of_ragged_trials_is_of_conditions():
    rng = np.random.default_rng(2)
    lengths, conditions = rng.integers(30, 50, 300), np.arange(300) % 3
    shapes = 1.5 + np.sin(np.arange(50)[:, None, None] / 12 + 2 * np.arange(3)[:, None])
    rates = np.concatenate([shapes[:n, k] for n, k in zip(lengths, conditions, strict=True)])
    counts = rng.poisson(np.repeat(rates, 2, axis=1))
    truth = np.repeat(rates, 2, axis=1)
    assert psth_r2(counts, truth, lengths, conditions, 0.02) > 0.95
    mean = np.broadcast_to(counts.mean(axis=0), counts.shape)
    assert abs(psth_r2(counts, mean, lengths, conditions, 0.02)) < 0.05
    other = np.concatenate([shapes[:n, k - 1] for n, k in zip(lengths, conditions, strict=True)])
    assert psth_r2(counts, np.repeat(other, 2, axis=1), lengths, conditions, 0.02) < 0


def test_psth_of_one_trial_is_r2_of_smoothed_counts():
    rng = np.random.default_rng(3)
    counts, model = rng.poisson(2.0, (40, 1)), rng.uniform(1, 3, (40, 1))
    smooth = gaussian_filter1d(counts.astype(float), 3.5, axis=0)
    want = 1 - np.sum((smooth - model) ** 2) / np.sum((smooth - smooth.mean()) ** 2)
    np.testing.assert_allclose(psth_r2(counts, model, (40,), ["a"], 0.02), want)


def test_psth_of_what_was_observed():
    rng = np.random.default_rng(4)
    lengths, conditions = (30,) * 40, np.arange(40) % 2
    counts, model = rng.poisson(2.0, (1200, 3)), rng.uniform(1, 3, (1200, 3))
    masks = np.ones(counts.shape, bool)
    plain = psth_r2(counts, model, lengths, conditions, 0.02)
    np.testing.assert_allclose(
        psth_r2(counts, model, lengths, conditions, 0.02, masks=masks), plain
    )
    masks[:, 2] = False
    two = psth_r2(counts[:, :2], model[:, :2], lengths, conditions, 0.02)
    hidden = np.where(masks, counts, np.nan), np.where(masks, model, np.nan)
    np.testing.assert_allclose(psth_r2(*hidden, lengths, conditions, 0.02, masks=masks), two)
    masks[:] = np.arange(1200)[:, None] % 30 < 20
    silent = np.where(masks, 2, 0)
    with pytest.raises(InputError, match="changes"):
        psth_r2(0 * silent, model, lengths, conditions, 0.02, masks=masks)
    smooth = smooth_trials(silent, lengths, 3.5, masks)
    np.testing.assert_allclose(smooth, silent)
    means = condition_averages(smooth, lengths, conditions, masks)
    np.testing.assert_allclose(means, np.where(masks[:60], 2, np.nan))


def test_pit_is_uniform_for_the_right_model_only(data):
    counts, rates = data
    assert kstest(pit(counts, rates).ravel(), "uniform").pvalue > 0.01
    assert kstest(pit(counts, 1.3 * rates).ravel(), "uniform").pvalue < 1e-6
    noisy = np.random.default_rng(4).negative_binomial(2, 2 / (2 + 3 * rates))
    values = pit(noisy, 3 * rates)
    assert np.mean(values > 0.95) > 0.08
    table = nbinom.pmf(np.arange(60), 2, (2 / (2 + 3 * rates))[..., None])
    assert kstest(pit(noisy, table).ravel(), "uniform").pvalue > 0.01
    variance = 3 * rates + (3 * rates) ** 2 / 2
    matched, whole = pit(noisy, 3 * rates, None, variance, 3), pit(noisy, table, seed=3)
    np.testing.assert_allclose(matched, whole, atol=1e-6)


def test_pit_of_a_table_is_that_of_its_distribution(data):
    counts, rates = data
    table = poisson.pmf(np.arange(40), rates[..., None])
    np.testing.assert_allclose(pit(counts, table, seed=3), pit(counts, rates, seed=3), atol=1e-9)
    assert np.any(pit(counts, rates, seed=3) != pit(counts, rates, seed=4))
    short = pit(counts, table[..., :2], seed=3)
    more = counts >= 2
    assert np.all(short[more] >= table[..., :2].sum(axis=-1)[more])
    assert kstest(short.ravel(), "uniform").pvalue > 0.01
    masks = counts != 1
    assert np.isnan(pit(counts, rates, masks)[~masks]).all()


def test_dispersion_finds_the_units_that_vary_more():
    rng = np.random.default_rng(5)
    rates = np.tile([0.05, 1.0, 4.0, 4.0], (BINS, 1))
    counts = rng.poisson(rates)
    counts[:, 3] = rng.negative_binomial(2, 1 / 3, BINS)
    found = dispersion(counts, rates)
    np.testing.assert_allclose(found.value, [1, 1, 1, 3], rtol=0.15)
    assert over_dispersed(found).tolist() == [False, False, False, True]
    assert "negative binomial" in dispersion_hint(found)
    right = dispersion(counts, rates, None, np.where(np.arange(4) == 3, 12.0, rates))
    assert not over_dispersed(right).any()
    assert "Poisson model: it fits" in dispersion_hint(right)
    assert "negative binomial model (median" in dispersion_hint(found, "negative binomial")
    assert "try more latents" in dispersion_hint(found, "negative binomial")
    few = dispersion(np.minimum(counts, 1), np.tile(np.minimum(counts, 1).mean(axis=0), (BINS, 1)))
    assert "less than the Poisson model" in dispersion_hint(few)


def test_units_that_do_not_fit_are_named():
    value, error = np.ones(40), np.full(40, 0.05)
    value[[3, 7, 9]], value[5], value[17] = 2.0, 0.5, np.nan
    ids = np.arange(101, 141)
    some = dispersion_hint(Dispersion(value, error), units=ids)
    assert some == (
        "3 of 39 units (104, 108, 110) vary more than the Poisson model (median 2.0); "
        "1 of 39 units (106) varies less than the Poisson model"
    )
    many = dispersion_hint(Dispersion(1 / value, error), units=ids)
    assert "it fits" not in some + many
    value[10:20] = 3.0
    assert "(104, 108, 110, 111, 112, …) vary more" in dispersion_hint(
        Dispersion(value, error), units=ids
    )


def test_standard_error_is_that_of_repetitions():
    rng = np.random.default_rng(6)
    rates = np.full((200, 500), 0.8)
    found = dispersion(rng.poisson(rates), rates)
    np.testing.assert_allclose(found.value.std(), found.error.mean(), rtol=0.15)
    wide = dispersion(rng.negative_binomial(2, 2 / 2.8, rates.shape), rates, variance=rates * 1.4)
    np.testing.assert_allclose(wide.value.std(), wide.error.mean(), rtol=0.15)


def test_silent_units_are_not_judged():
    found = dispersion(np.zeros((9, 2)), np.array([[0.0, 0.1]] * 9))
    assert np.isnan(found.value).tolist() == [True, False]
    assert dispersion_hint(Dispersion(found.value[:1], found.error[:1])).startswith("no unit")

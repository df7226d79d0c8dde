"""The first readout: found for every kind, with gaps, up to an affine map."""

import numpy as np
import pytest

from evkf.analysis.metrics import affine_r2
from evkf.errors import InputError
from evkf.learning import warm_up
from evkf.learning.warm_up import KINDS, _smooth
from tests.quick import plain_compilation  # noqa: F401

T, N = 300, 30
RNG = np.random.default_rng(0)
PHASE = np.arange(T) / 15
STATES = np.column_stack([np.sin(PHASE), np.cos(0.7 * PHASE)])
C = RNG.normal(size=(N, 2)) / 2
B = RNG.normal(size=N) + 3.0


def observe(kind: str) -> np.ndarray:
    a = STATES @ C.T + B
    rate = 0.1 * np.exp(a)
    if kind == "poisson":
        return RNG.poisson(rate)
    if kind == "negative_binomial":
        return RNG.poisson(rate * RNG.gamma(4.0, 0.25, rate.shape))
    if kind == "bernoulli":
        return (RNG.random(rate.shape) < rate / (1 + rate)).astype(float)
    return a + 0.5 * RNG.normal(size=a.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_the_readout_spans_the_true_one(kind: str):
    ys = observe(kind).astype(float)
    masks = np.ones(ys.shape, bool)
    masks[50:80, :5] = False
    masks[100] = False
    width = 1.0 if kind == "gaussian" else 0.1
    found = warm_up(np.where(masks, ys, np.nan), 2, kind, width, masks)
    assert affine_r2(np.asarray(found.C), C) > (0.6 if kind == "bernoulli" else 0.85)
    mean = np.asarray(STATES.mean(axis=0) @ C.T + B)
    assert np.corrcoef(found.b, mean)[0, 1] > 0.95
    assert abs(float(np.mean(found.b - mean))) < 0.5
    if kind == "negative_binomial":
        assert 1.5 < float(np.exp(np.median(found.log_dispersion))) < 12
    if kind == "gaussian":
        np.testing.assert_allclose(np.median(found.noise.var()), 0.25, rtol=0.3)
    assert float(found.bin_width) == pytest.approx(width)


def test_silent_channels_do_no_harm():
    ys = observe("poisson").astype(float)
    ys[:, 0] = 0
    found = warm_up(ys, 2, "poisson")
    assert np.all(np.isfinite(found.C))
    assert found.b[0] < found.b[1:].min()


@pytest.mark.parametrize("kind", KINDS)
def test_a_channel_that_was_never_observed_is_like_the_others(kind: str):
    ys = observe(kind).astype(float)
    masks = np.ones(ys.shape, bool)
    masks[:, 3] = False
    found = warm_up(np.where(masks, ys, np.nan), 2, kind, masks=masks)
    whole = warm_up(np.delete(ys, 3, axis=1), 2, kind)
    assert np.linalg.norm(found.C[3]) < 0.1
    assert whole.b.min() < found.b[3] < whole.b.max()
    np.testing.assert_allclose(np.delete(found.b, 3), whole.b, atol=0.1)


def test_the_units_of_continuous_signals_do_not_matter():
    ys = observe("gaussian")
    unit = np.exp(RNG.normal(size=N) * 4)
    one, other = warm_up(ys, 2, "gaussian"), warm_up(ys * unit + 7, 2, "gaussian")
    np.testing.assert_allclose(other.C, one.C * unit[:, None], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(other.b, one.b * unit + 7, rtol=1e-6)
    np.testing.assert_allclose(other.noise.var(), one.noise.var() * unit**2, rtol=1e-5)


def test_nothing_is_smoothed_across_trials():
    marks = np.arange(T) % 100 == 0
    ys, seen = RNG.poisson(1.0, size=(T, 4)).astype(float), np.ones((T, 4), bool)
    whole = _smooth(ys, seen, marks, 5.0)
    ys[100:200] += 10
    seen[100:200, 0] = False
    share = _smooth(ys, seen, marks, 5.0) - whole
    # The means of channels have changed, but they have little weight away from gaps.
    assert np.abs(share[:100, 1:]).max() < 0.5
    assert share[100:200, 1:].min() > 5


def test_bad_requests_are_refused():
    ys = np.ones((20, 3))
    with pytest.raises(InputError, match="poisson"):
        warm_up(ys, 2, "poison")
    with pytest.raises(InputError, match="fewer latents"):
        warm_up(ys, 4, "poisson")
    with pytest.raises(InputError, match="nothing was observed"):
        warm_up(ys, 2, "poisson", masks=np.zeros(20, bool))
    with pytest.raises(InputError, match=r"whole number|negative"):
        warm_up(-ys, 2, "poisson")

"""The first readout: found for every kind, with gaps, up to an affine map."""

import numpy as np
import pytest

from evkf.errors import InputError
from evkf.learning import warm_up
from evkf.learning.warmup import KINDS
from evkf.metrics import affine_r2

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
    found = warm_up(np.where(masks, ys, np.nan), masks, 2, kind, width)
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
    found = warm_up(ys, np.ones(ys.shape, bool), 2, "poisson")
    assert np.all(np.isfinite(found.C))
    assert found.b[0] < found.b[1:].min()


def test_bad_requests_are_refused():
    ys, masks = np.ones((20, 3)), np.ones((20, 3), bool)
    with pytest.raises(InputError, match="poisson"):
        warm_up(ys, masks, 2, "poison")
    with pytest.raises(InputError, match="fewer latents"):
        warm_up(ys, masks, 4, "poisson")

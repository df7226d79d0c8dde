"""Decoding: ridge regression against its normal equations, and nothing leaks between trials."""

import numpy as np
import pytest

from evkf.analysis.decoding import RidgeDecoder, decode_ridge, integrate, lagged, r2
from evkf.errors import InputError


def problem(seed=0, bins=400, columns=6):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(bins, columns)) * rng.uniform(0.5, 3, columns) + 4
    target = features @ rng.normal(size=(columns, 2)) + 7 + rng.normal(size=(bins, 2))
    return features, target, np.arange(bins) // 20


def test_weights_solve_the_normal_equations():
    x, y, groups = problem()
    ridge = RidgeDecoder(alphas=(30.0,)).fit(x, y, groups)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    want = np.linalg.solve(z.T @ z + 30 * np.eye(x.shape[1]), z.T @ (y - y.mean(axis=0)))
    np.testing.assert_allclose(ridge.weight_ * x.std(axis=0)[:, None], want)
    np.testing.assert_allclose(ridge.predict(x), z @ want + y.mean(axis=0))


def test_scores_are_of_trials_left_out():
    x, y, groups = problem(bins=100, columns=3)
    ridge = RidgeDecoder(alphas=(1.0, 100.0), folds=5).fit(x, y, groups)
    fold = np.random.default_rng(0).permutation(5)[groups] % 5
    held = np.empty_like(y)
    for k in range(5):
        out = fold == k
        inside = RidgeDecoder(alphas=(100.0,)).fit(x[~out], y[~out], groups[~out])
        held[out] = inside.predict(x[out])
    np.testing.assert_allclose(ridge.scores_[1], r2(y, held))
    assert ridge.alpha_ == (1.0, 100.0)[int(np.argmax(ridge.scores_))]


def test_whole_trials_are_left_out():
    """Columns that only name the trial explain bins of the same trial and nothing else."""
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(20), 30)
    names = np.eye(20)[groups]
    target = rng.normal(size=(20, 1))[groups] + 0.1 * rng.normal(size=(600, 1))
    assert RidgeDecoder().fit(names, target, groups).scores_.max() < 0.05
    assert RidgeDecoder().fit(names, target, np.arange(600)).scores_.max() > 0.9


def test_noise_chooses_a_stronger_penalty():
    x, y, groups = problem()
    rng = np.random.default_rng(2)
    weak = RidgeDecoder().fit(x, y, groups)
    strong = RidgeDecoder().fit(rng.normal(size=(400, 100)), rng.normal(size=(400, 2)), groups)
    assert weak.alpha_ < 100 < strong.alpha_


def test_near_silent_units_do_not_blow_up():
    """One spike in training, ten in a bin of the test: a scale without floor would shout."""
    rng = np.random.default_rng(3)
    x, y, groups = problem(columns=8)
    quiet = np.zeros((400, 1))
    quiet[17] = 1e-3
    y = y + 30 * quiet / 1e-3
    loud = np.where(rng.uniform(size=(400, 1)) < 0.1, 0.01, 0.0)
    found = RidgeDecoder().fit(np.hstack([x, quiet]), y, groups)
    calm = found.predict(np.hstack([x, 0 * loud]))
    assert np.abs(found.predict(np.hstack([x, loud])) - calm).max() < 0.5 * y.std()
    scale = found.weight_[-1] * quiet.std()
    assert np.abs(scale).max() < 0.05


def test_columns_and_targets_that_never_change():
    x, y, groups = problem()
    still = np.hstack([x, np.full((400, 1), 3.0)])
    np.testing.assert_allclose(
        RidgeDecoder(alphas=(1e-6,)).fit(still, y, groups).predict(still),
        RidgeDecoder(alphas=(1e-6,)).fit(x, y, groups).predict(x),
    )
    with pytest.raises(InputError, match="never changes"):
        r2(np.ones((3, 1)), np.ones((3, 1)))


def test_decode_and_r2():
    x, y, groups = problem()
    found = decode_ridge(x[:200], y[:200], groups[:200], x[200:])
    each = [1 - np.var(y[200:, i] - found[:, i]) / y[200:, i].var() for i in range(2)]
    np.testing.assert_allclose(r2(y[200:], found), np.mean(each), atol=0.01)
    assert r2(y[200:], found) > 0.8
    assert r2(y, np.broadcast_to(y.mean(axis=0), y.shape)) == pytest.approx(0)
    assert r2(y, -y) < 0


def test_lags_stay_within_trials():
    x = np.arange(1, 13).reshape(6, 2)
    found = lagged(x, 3, (4, 2))
    np.testing.assert_array_equal(found[:, :2], x)
    np.testing.assert_array_equal(found[3], [7, 8, 5, 6, 3, 4])
    np.testing.assert_array_equal(found[4], [9, 10, 0, 0, 0, 0])
    np.testing.assert_array_equal(found[5], [11, 12, 9, 10, 0, 0])
    np.testing.assert_array_equal(lagged(x[4:], 3, (2,)), found[4:])


def test_positions_follow_velocities():
    times = np.arange(0, 1, 0.01)
    path = np.stack([np.sin(3 * times), times**2], axis=-1)
    speed = np.stack([3 * np.cos(3 * times), 2 * times], axis=-1)
    both, lengths = np.vstack([speed, speed[:50]]), (100, 50)
    found = integrate(both, 0.01, lengths, np.vstack([path[:1], path[:1] + 5]))
    np.testing.assert_allclose(found[:100], path, atol=1e-4)
    np.testing.assert_allclose(found[100:], path[:50] + 5, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x, y, g: RidgeDecoder().fit(x, y[:-1], g), "target"),
        (lambda x, y, g: RidgeDecoder().fit(x, y, g[:-1]), "groups"),
        (lambda x, y, g: RidgeDecoder().fit(x, y, 0 * g), "one trial"),
        (lambda x, y, g: RidgeDecoder(alphas=(0.0,)).fit(x, y, g), "alphas"),
        (lambda x, y, g: RidgeDecoder(folds=1).fit(x, y, g), "folds"),
        (lambda x, y, g: RidgeDecoder().predict(x), "call fit"),
        (lambda x, y, g: RidgeDecoder().fit(x, y, g).predict(x[:, 1:]), "columns"),
        (lambda x, y, g: RidgeDecoder().fit(np.where(x > 5, np.nan, x), y, g), "nan"),
        (lambda x, y, g: r2(y, y[:-1]), "shape of the truth"),
        (lambda x, y, g: lagged(x, 0, (400,)), "lags"),
        (lambda x, y, g: lagged(x, 2, (399,)), "lengths"),
        (lambda x, y, g: integrate(y, 0.0, (400,), y[:1]), "bin_width"),
        (lambda x, y, g: integrate(y, 0.1, (400,), y[:2]), "start"),
    ],
)
def test_what_does_not_fit_is_refused(call, says):
    with pytest.raises(InputError, match=says):
        call(*problem())

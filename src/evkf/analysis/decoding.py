"""Linear decoding of behaviour: ridge regression, lagged columns for a Wiener filter, positions.

Bins of one trial are alike, so the penalty is chosen by leaving out whole trials.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.numerics.checks import check_whole, real_numbers
from evkf.numerics.trials import Lengths, bins_of, read_bins, slices

ALPHAS = tuple(np.logspace(-2, 6, 17))
"""Penalties to choose from, on standardised columns."""

FLOOR = 0.1
"""Least scale of a column, as a share of the mean scale: a unit with three spikes in training must
not count as much as one with a thousand."""


class Ridge:
    """Ridge regression with an intercept, its penalty chosen by cross-validation over trials.

    Columns are standardised first, by scales that are floored.

    Args:
        alphas: Penalties to choose from.
        folds: Parts that the trials are dealt out to; no more than there are trials.
        seed: Of the dealing.

    Attributes:
        alpha_: The penalty chosen.
        scores_: R² of every penalty on trials left out.
        weight_: From columns as they are, (columns, coordinates).
        offset_: Intercept, (coordinates,).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> features = rng.normal(size=(200, 3))
        >>> target = features @ [[1.0], [0.0], [-2.0]] + 5 + 0.1 * rng.normal(size=(200, 1))
        >>> ridge = Ridge().fit(features, target, np.repeat(np.arange(20), 10))
        >>> ridge.weight_[:, 0].round(1), ridge.offset_.round(1)
        (array([ 1., -0., -2.]), array([5.]))
    """

    def __init__(self, alphas: Sequence[float] = ALPHAS, folds: int = 5, seed: int = 0):
        self.alphas, self.folds, self.seed = alphas, folds, seed

    def fit(self, features: ArrayLike, target: ArrayLike, groups: ArrayLike) -> Self:
        """Choose the penalty, and learn from all bins with it.

        Args:
            features: One row a bin, (bins, columns).
            target: What to decode, (bins, coordinates).
            groups: The trial of every bin.
        """
        x, y = read_bins(features, "features"), read_bins(target, "target")
        fold = self._deal(np.asarray(groups), len(x))
        alphas = real_numbers(list(self.alphas), "alphas").astype(float)
        if len(y) != len(x):
            raise InputError(f"target of {len(y)} bins", "target", f"pass {len(x)} rows")
        if not len(alphas) or np.any(alphas <= 0):
            raise InputError(f"alphas {alphas}", "alphas", "pass numbers above zero")
        held = np.empty((len(alphas), *y.shape))
        for k in range(fold.max() + 1):
            out = fold == k
            for i, (weight, offset) in enumerate(_solve(x[~out], y[~out], alphas)):
                held[i, out] = x[out] @ weight + offset
        self.scores_ = np.array([r2(y, predicted) for predicted in held])
        self.alpha_ = float(alphas[np.argmax(self.scores_)])
        ((self.weight_, self.offset_),) = _solve(x, y, np.array([self.alpha_]))
        return self

    def predict(self, features: ArrayLike) -> Float[np.ndarray, "T D"]:
        """The target of every bin."""
        if not hasattr(self, "weight_"):
            raise InputError("not fitted yet", "Ridge", "call fit first")
        x = read_bins(features, "features")
        if x.shape[1] != len(self.weight_):
            what = f"{x.shape[1]} columns"
            raise InputError(what, "features", f"pass the {len(self.weight_)} of fit")
        return x @ self.weight_ + self.offset_

    def _deal(self, groups: np.ndarray, bins: int) -> Int[np.ndarray, " T"]:
        """The fold of every bin."""
        if groups.shape != (bins,):
            what = f"groups of shape {groups.shape}"
            raise InputError(what, "groups", f"pass the trial of each of the {bins} bins")
        check_whole(self.folds, 2, "folds")
        _, which = np.unique(groups, return_inverse=True)
        trials = which.max() + 1
        if trials < 2:
            raise InputError("one trial", "groups", "pass two or more, to leave some out")
        order = np.random.default_rng(self.seed).permutation(trials)
        return (order % min(self.folds, trials))[which]


def decode(
    train_features: ArrayLike,
    train_target: ArrayLike,
    train_groups: ArrayLike,
    test_features: ArrayLike,
) -> Float[np.ndarray, "T D"]:
    """The target of other trials by `Ridge`.

    Example:
        >>> features = np.random.default_rng(0).normal(size=(60, 2))
        >>> target = features @ np.array([[1.0], [2.0]])
        >>> found = decode(features[:40], target[:40], np.arange(40) // 4, features[40:])
        >>> round(r2(target[40:], found), 2)
        1.0
    """
    return Ridge().fit(train_features, train_target, train_groups).predict(test_features)


def r2(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Share of variance explained, the mean over coordinates; below zero when worse than the mean.

    Example:
        >>> r2([[0.0], [2.0]], [[0.0], [2.0]]), r2([[0.0], [2.0]], [[1.0], [1.0]])
        (1.0, 0.0)
    """
    truth, predicted = read_bins(truth, "truth"), read_bins(predicted, "predicted")
    if truth.shape != predicted.shape:
        what = f"predictions of shape {predicted.shape}"
        raise InputError(what, "predicted", f"pass the shape of the truth, {truth.shape}")
    total = np.sum((truth - truth.mean(axis=0)) ** 2, axis=0)
    if np.any(total == 0):
        what = f"coordinate {int(np.argmin(total))} never changes"
        raise InputError(what, "truth", "leave it out; it has no variance to explain")
    return float(np.mean(1 - np.sum((truth - predicted) ** 2, axis=0) / total))


def lagged(features: ArrayLike, lags: int, lengths: Lengths) -> Float[np.ndarray, "T M"]:
    """Every bin beside the ones before it, as a Wiener filter reads them; the present bin first.

    Nothing is taken from another trial: before the first bin of a trial there are zeros. How many
    tells a decoder how long ago the trial began, which in reaches aligned to their onset is worth a
    lot; what is compared with it should know as much.

    Args:
        features: One row a bin, (bins, columns).
        lags: Bins side by side, the present one among them.
        lengths: Bins of every trial.

    Example:
        >>> lagged([[1], [2], [3], [4]], 2, (2, 2)).tolist()
        [[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [4.0, 3.0]]
    """
    x = read_bins(features, "features")
    check_whole(lags, 1, "lags")
    slices(lengths, len(x))
    before = bins_of(lengths)[:, None]
    return np.hstack([np.where(lag <= before, np.roll(x, lag, axis=0), 0) for lag in range(lags)])


def integrate(
    velocity: ArrayLike,
    bin_width: float,
    lengths: Lengths,
    start: ArrayLike,
) -> Float[np.ndarray, "T D"]:
    """Positions in the middle of bins from mean velocities, by the trapezium rule.

    Args:
        velocity: Per second, (bins, coordinates).
        bin_width: In seconds.
        lengths: Bins of every trial.
        start: Position of every trial in its first bin, (trials, coordinates).

    Example:
        >>> integrate([[1.0], [1.0], [3.0]], 0.5, (3,), [[10.0]]).tolist()
        [[10.0], [10.5], [11.5]]
    """
    v, first = read_bins(velocity, "velocity"), read_bins(start, "start")
    trials = slices(lengths, len(v))
    if first.shape != (len(trials), v.shape[1]):
        what = f"start of shape {first.shape}"
        raise InputError(what, "start", f"pass shape {(len(trials), v.shape[1])}")
    if not (np.isfinite(bin_width) and bin_width > 0):
        raise InputError(f"bin_width = {bin_width}", "bin_width", "pass seconds above zero")
    paths = np.empty_like(v)
    for trial, begin in zip(trials, first, strict=True):
        steps = bin_width * (v[trial][1:] + v[trial][:-1]) / 2
        paths[trial] = begin + np.cumsum(np.vstack([np.zeros(v.shape[1]), steps]), axis=0)
    return paths


def _solve(
    x: np.ndarray, y: np.ndarray, alphas: np.ndarray
) -> list[tuple[Float[np.ndarray, "M D"], Float[np.ndarray, " D"]]]:
    """Weights and intercept of every penalty, by one decomposition."""
    centre, mean = x.mean(axis=0), y.mean(axis=0)
    scale = x.std(axis=0)
    scale = np.maximum(scale, FLOOR * scale.mean())
    # where nothing changes, any scale will do
    scale = np.where(scale > 0, scale, 1.0)
    z = (x - centre) / scale
    values, vectors = np.linalg.eigh(z.T @ z)
    seen = vectors.T @ (z.T @ (y - mean))
    weights = [
        vectors @ (seen / (np.maximum(values, 0) + alpha)[:, None]) / scale[:, None]
        for alpha in alphas
    ]
    return [(weight, mean - centre @ weight) for weight in weights]

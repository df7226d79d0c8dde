"""Linear decoding of behaviour: ridge regression, lagged columns for a Wiener filter, positions.

Bins of one trial are alike, so the penalty is chosen by leaving out whole trials.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from evkf.errors import InputError
from evkf.numerics.checks import check_whole, real_numbers
from evkf.numerics.trials import Lengths, bins_of, read_bins, slices

ALPHAS = tuple(np.logspace(-2, 6, 17))
"""Penalties to choose from, on standardised columns."""

FLOOR = 0.1
"""Least scale of a column, as a share of the mean scale: a unit with three spikes in training must
not count as much as one with a thousand."""


class RidgeDecoder:
    """Ridge regression with an intercept, its penalty chosen by cross-validation over trials.

    Columns are standardised first, by scales with a floor.

    Args:
        alphas: Penalties to choose from.
        folds: Number of folds that trials are dealt to; at most one per trial is used.
        seed: Seed of the dealing.

    Attributes:
        alpha_: The chosen penalty.
        scores_: R² of every penalty on trials left out.
        weight_: Weights of the columns before they are standardised, (columns, coordinates).
        offset_: Intercept, (coordinates,).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> features = rng.normal(size=(200, 3))
        >>> target = features @ [[1.0], [0.0], [-2.0]] + 5 + 0.1 * rng.normal(size=(200, 1))
        >>> ridge = RidgeDecoder().fit(features, target, np.repeat(np.arange(20), 10))
        >>> ridge.weight_[:, 0].round(1), ridge.offset_.round(1)
        (array([ 1., -0., -2.]), array([5.]))
    """

    def __init__(self, alphas: Sequence[float] = ALPHAS, folds: int = 5, seed: int = 0):
        self.alphas, self.folds, self.seed = alphas, folds, seed

    def fit(self, features: ArrayLike, target: ArrayLike, groups: ArrayLike) -> Self:
        """Choose the penalty, and fit all bins with it.

        Args:
            features: One row a bin, (bins, columns).
            target: Behaviour to decode, (bins, coordinates).
            groups: The trial of every bin.
        """
        x, y = read_bins(features, "features"), read_bins(target, "target")
        groups = np.asarray(groups)
        if groups.shape != (len(x),):
            what = f"groups of shape {groups.shape}"
            raise InputError(what, "groups", f"pass the trial of each of the {len(x)} bins")
        check_whole(self.folds, 2, "folds")
        _, which = np.unique(groups, return_inverse=True)
        trials = which.max() + 1
        if trials < 2:
            raise InputError("one trial", "groups", "pass two or more, to leave some out")
        alphas = real_numbers(list(self.alphas), "alphas").astype(float)
        if len(y) != len(x):
            raise InputError(f"target of {len(y)} bins", "target", f"pass {len(x)} rows")
        if not len(alphas) or np.any(alphas <= 0):
            raise InputError(f"alphas {alphas}", "alphas", "pass numbers above zero")

        # GroupKFold of scikit-learn would deal trials to folds by the number of their bins.
        order = np.random.default_rng(self.seed).permutation(trials)
        fold = (order % min(self.folds, trials))[which]
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
        """Return the target of every bin."""
        if not hasattr(self, "weight_"):
            raise InputError("not fitted yet", "RidgeDecoder", "call fit first")
        x = read_bins(features, "features")
        if x.shape[1] != len(self.weight_):
            what = f"{x.shape[1]} columns"
            raise InputError(what, "features", f"pass the {len(self.weight_)} of fit")
        return x @ self.weight_ + self.offset_


def decode_ridge(
    train_features: ArrayLike,
    train_target: ArrayLike,
    train_groups: ArrayLike,
    test_features: ArrayLike,
) -> Float[np.ndarray, "T D"]:
    """Fit a `RidgeDecoder` to some trials, and return the target of others.

    Example:
        >>> features = np.random.default_rng(0).normal(size=(60, 2))
        >>> target = features @ np.array([[1.0], [2.0]])
        >>> trials = np.arange(40) // 4
        >>> decoded = decode_ridge(features[:40], target[:40], trials, features[40:])
        >>> round(r2(target[40:], decoded), 2)
        1.0
    """
    return RidgeDecoder().fit(train_features, train_target, train_groups).predict(test_features)


def r2(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return the share of variance explained, the mean over coordinates.

    It is below zero for predictions worse than the mean of the truth.

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
    # r2_score of scikit-learn is the same, and slow to import.
    return float(np.mean(1 - np.sum((truth - predicted) ** 2, axis=0) / total))


def lagged(features: ArrayLike, lags: int, lengths: Lengths) -> Float[np.ndarray, "T M"]:
    """Return every bin beside the ones before it, for a Wiener filter; the present bin first.

    Nothing is taken from another trial: before the first bin of a trial there are zeros. Their
    number gives a decoder the time since the trial began, which helps a lot in reaches aligned to
    their onset. Compare it with methods that have this time too.

    Args:
        features: One row a bin, (bins, columns).
        lags: Number of bins side by side, with the present one.
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
    """Return positions in the middle of bins from mean velocities, by the trapezium rule.

    Args:
        velocity: Velocities per second, (bins, coordinates).
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
    """Return weights and intercept of every penalty, from one decomposition.

    Ridge of scikit-learn would make the Gram matrix again for every penalty, and its RidgeCV leaves
    out single bins instead of trials.
    """
    centre, mean = x.mean(axis=0), y.mean(axis=0)
    scale = x.std(axis=0)
    scale = np.maximum(scale, FLOOR * scale.mean())
    # Constant columns have no scale.
    scale = np.where(scale > 0, scale, 1.0)
    z = (x - centre) / scale
    values, vectors = np.linalg.eigh(z.T @ z)
    seen = vectors.T @ (z.T @ (y - mean))
    weights = [
        vectors @ (seen / (np.maximum(values, 0) + alpha)[:, None]) / scale[:, None]
        for alpha in alphas
    ]
    return [(weight, mean - centre @ weight) for weight in weights]

"""Decode behaviour by linear maps: ridge regression, lagged features, positions from velocities.

Features are the known columns (such as rates or latents), the target is the behaviour. Ridge
regression on lagged features is a Wiener filter. Neighbouring bins of a trial resemble each other,
so cross-validation leaves out whole trials, not single bins.
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
"""Default penalties that `RidgeDecoder` chooses from, for standardised columns."""

FLOOR = 0.1
"""Smallest divisor that standardises a column, as a share of the mean standard deviation of all
columns. Without this floor a unit that fired three spikes would count as much as a unit that fired
a thousand."""


class RidgeDecoder:
    """Ridge regression that has an intercept and a penalty chosen by cross-validation over trials.

    Every column of the features is centred and divided by its standard deviation, or by 0.1 times
    the mean standard deviation of all columns if this is larger.

    Args:
        alphas: Penalties to choose from, all above zero.
        folds: Number of groups of trials for cross-validation, 2 or more; lowered to the number of
            trials if there are fewer trials.
        seed: Seed of the random assignment of trials to folds.

    Attributes:
        alpha_: The penalty that has the highest R².
        scores_: R² of each penalty, for predictions of trials left out of the fit, (penalties,).
        weight_: Weights that apply to the features as given, not standardised,
            (columns, coordinates).
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
        """Choose the penalty, fit all bins using this penalty, and return this decoder.

        Args:
            features: Features, (bins, columns).
            target: Behaviour to decode, (bins, coordinates).
            groups: Number or name of the trial of each bin, (bins,); two trials or more.
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

        # GroupKFold of scikit-learn would assign trials to folds by their number of bins, not at
        # random.
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
        """Return the predicted target of each bin, for features of shape (bins, columns)."""
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
    """Fit a `RidgeDecoder` to training trials, and return the predicted target of test trials.

    Args:
        train_features: Features of the training bins, (bins, columns).
        train_target: Behaviour in the training bins, (bins, coordinates).
        train_groups: Trial of each training bin, (bins,).
        test_features: Features of the test bins, (test bins, columns).

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
    """Return R², the share of variance explained, averaged over coordinates.

    R² is 1 for perfect predictions, and below zero for predictions worse than the mean of the
    truth. Raise InputError if a coordinate of the truth never changes.

    Args:
        truth: True values, (bins, coordinates).
        predicted: Predicted values, (bins, coordinates).

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
    """Return features of each bin and of the bins before, concatenated, for a Wiener filter.

    The features of the present bin come first, then those of one bin before, and so on. Features
    before the first bin of a trial are zero; features of another trial are never used. A decoder
    can read the time since the trial began from the number of zeros, which helps a lot if reaches
    are aligned to their onset. So compare a Wiener filter only with methods that know this time.

    Args:
        features: Features, (bins, columns).
        lags: Number of bins to concatenate, including the present bin; 1 or more.
        lengths: Number of bins of each trial.

    Returns:
        Lagged features, (bins, lags × columns).

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
    """Return positions in the middle of bins, integrated from velocities by the trapezium rule.

    Args:
        velocity: Mean velocity in each bin, in units of position per second, (bins, coordinates).
        bin_width: Bin width in seconds.
        lengths: Number of bins of each trial.
        start: Position in the middle of the first bin of each trial, (trials, coordinates).

    Returns:
        Positions, (bins, coordinates).

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
    """Return (weights, intercept) for each penalty, from one eigendecomposition.

    Ridge of scikit-learn would compute the Gram matrix again for each penalty, and RidgeCV of
    scikit-learn leaves out single bins instead of trials.
    """
    centre, mean = x.mean(axis=0), y.mean(axis=0)
    scale = x.std(axis=0)
    scale = np.maximum(scale, FLOOR * scale.mean())
    # A constant column is divided by 1 if all columns are constant.
    scale = np.where(scale > 0, scale, 1.0)
    z = (x - centre) / scale
    values, vectors = np.linalg.eigh(z.T @ z)
    seen = vectors.T @ (z.T @ (y - mean))
    weights = [
        vectors @ (seen / (np.maximum(values, 0) + alpha)[:, None]) / scale[:, None]
        for alpha in alphas
    ]
    return [(weight, mean - centre @ weight) for weight in weights]

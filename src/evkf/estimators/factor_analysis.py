"""Factor analysis of trials, from which `GPFA` and `LinearDynamicalSystem` start.

Also how both read observations: an array of bins, or a list of trials of any lengths.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.sparse import issparse
from sklearn.exceptions import NotFittedError

from evkf.errors import InputError
from evkf.numerics.checks import check_whole, real_numbers

FLOOR = 0.01
"""Least private variance of a unit, as a share of its variance."""

ROUNDS, FAINT = 50, 0.01
"""Iterations of factor analysis, and least variance of a factor over that of its noise."""

TRANSFORMS = {"sqrt": np.sqrt, "log": np.log1p, None: np.asarray}
"""Functions of counts that are modelled as Gaussian."""


class UnfittedError(InputError, NotFittedError):
    """An estimator was used before it was fitted.

    Example:
        >>> issubclass(UnfittedError, InputError), issubclass(UnfittedError, NotFittedError)
        (True, True)
    """


def read_sequences(
    X: Any, transform: str | None, fitted: Any = None
) -> tuple[list[Float[np.ndarray, "T N"]], bool]:
    """Check observations, and return transformed trials; also True if X is a list of trials.

    Args:
        X: Observations, (bins, units), or a list of such trials.
        transform: Name of one of `TRANSFORMS`.
        fitted: A fitted estimator, whose number of units is required.

    Example:
        >>> read_sequences([[4, 0], [1, 1]], "sqrt")
        ([array([[2., 0.],
               [1., 1.]])], False)
    """
    many = isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) > 1
    units = None if fitted is None else fitted.n_features_in_
    trials = []
    # The words of scikit-learn's own checks, where it has a check.
    for index, trial in enumerate(X if many else [X]):
        where = f"X[{index}]" if many else "X"
        if issparse(trial):
            raise InputError("sparse observations", where, "pass dense arrays: X.toarray()")
        array = np.asarray(trial)
        if array.dtype.kind == "c":
            raise InputError("Complex data not supported", where, "pass counts")
        array = real_numbers(array, where).astype(float)
        units = array.shape[-1] if units is None and array.ndim == 2 else units
        remedy = f"pass (bins, {units or 'units'}) with one bin or more, or a list of such trials"
        if array.ndim != 2:
            what = f"observations of shape {array.shape}"
            raise InputError(what, where, f"Reshape your data: {remedy}")
        if array.shape[1] != units:
            name = "the first trial" if fitted is None else type(fitted).__name__
            what = f"X has {array.shape[1]} features, but {name} is expecting {units} features"
            raise InputError(f"{what} as input: observations of shape {array.shape}", where, remedy)
        if array.size == 0:
            least = "0 feature(s)" if array.shape[1] == 0 else "0 sample(s)"
            what = f"{least} (shape={array.shape}) while a minimum of 1 is required."
            raise InputError(what, where, remedy)
        if not np.all(np.isfinite(array)):
            t, n = (int(i) for i in np.argwhere(~np.isfinite(array))[0])
            remedy = "leave out the unit or the bins: there are no missing observations (NaN) here"
            raise InputError(f"observation {array[t, n]}", f"{where}[{t}, {n}]", remedy)
        if transform is not None and np.any(array < 0):
            t, n = (int(i) for i in np.argwhere(array < 0)[0])
            what = f"Negative values in data: the {transform} of {array[t, n]}"
            raise InputError(what, f"{where}[{t}, {n}]", "pass counts, or do not transform them")
        trials.append(TRANSFORMS[transform](array))
    return trials, many


def pad_trials(
    trials: list[np.ndarray], grain: int = 1
) -> tuple[Float[np.ndarray, "I T N"], Bool[np.ndarray, "I T"]]:
    """Return trials side by side, and a mask of the bins that they have.

    Args:
        trials: The trials.
        grain: Bins are padded to a multiple of it. Above 1, the number of trials is padded to a
            power of two, so that other data seldom have a new shape.

    Example:
        >>> ys, seen = pad_trials([np.ones((1, 2)), np.ones((3, 2))])
        >>> ys.shape, seen.sum(axis=1).tolist()
        ((2, 3, 2), [1, 3])
    """
    bins = -(-max(len(trial) for trial in trials) // grain) * grain
    rows = len(trials) if grain == 1 else 1 << (len(trials) - 1).bit_length()
    ys, seen = np.zeros((rows, bins, trials[0].shape[1])), np.zeros((rows, bins), bool)
    for i, trial in enumerate(trials):
        ys[i, : len(trial)], seen[i, : len(trial)] = trial, True
    return ys, seen


def analyse_factors(
    ys: Float[np.ndarray, "T N"], latents: int
) -> tuple[Float[np.ndarray, "N L"], Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return loadings, means and private variances of observations, as if bins had no order.

    The iteration is that of scikit-learn's FactorAnalysis. It is written here because private
    variances have a floor in every round: at a variance of zero, EM could not go on.

    Args:
        ys: Observations.
        latents: Number of factors, no more than there are units.

    Example:
        >>> factor = np.random.default_rng(0).normal(size=(500, 1))
        >>> loadings, mean, private = analyse_factors(factor * [1.0, 2.0, 3.0], 1)
        >>> (np.abs(loadings[:, 0]) / np.abs(loadings[0, 0])).round(1)
        array([1., 2., 3.])
    """
    check_whole(latents, 1, "latents")
    if latents > ys.shape[1]:
        what = f"{latents} latents of {ys.shape[1]} units"
        raise InputError(what, "latents", "pass no more than there are units")
    if len(ys) < 2:
        raise InputError("one sample", "X", "pass two bins or more")
    still = np.flatnonzero(np.ptp(ys, axis=0) == 0)
    if still.size:
        what = f"units {still.tolist()} never change"
        raise InputError(what, "X", "leave them out; they have no variance to explain")
    mean = ys.mean(axis=0)
    centred = ys - mean
    cov = centred.T @ centred / len(ys)
    variance = np.diagonal(cov)
    loadings, private = np.empty((0, 0)), variance
    for _ in range(ROUNDS):
        scale = np.sqrt(private)
        values, vectors = np.linalg.eigh(cov / np.outer(scale, scale))
        strength = np.sqrt(np.maximum(values[::-1][:latents] - 1, FAINT))
        loadings = scale[:, None] * vectors[:, ::-1][:, :latents] * strength
        private = np.maximum(variance - np.sum(loadings**2, axis=1), FLOOR * variance)
    return loadings, mean, private

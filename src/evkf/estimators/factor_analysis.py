"""Factor analysis, from which `GPFA` and `LinearDynamicalSystem` start to learn.

Both estimators also read observations with the functions here: an array of bins, or a list of
trials of any lengths.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.sparse import issparse
from sklearn.exceptions import NotFittedError

from evkf.errors import InputError
from evkf.numerics.checks import check_whole, real_numbers

FLOOR = 0.01
"""Smallest private (noise) variance of a unit, as a fraction of the unit's variance."""

ROUNDS, FAINT = 50, 0.01
"""Number of iterations of factor analysis, and smallest variance of a factor divided by the
variance of the noise along the factor."""

TRANSFORMS = {"sqrt": np.sqrt, "log": np.log1p, None: np.asarray}
"""Functions of counts whose results are modelled as Gaussian; "log" is the log of 1 + counts."""


class UnfittedError(InputError, NotFittedError):
    """Error: an estimator was used before it was fitted.

    Example:
        >>> issubclass(UnfittedError, InputError), issubclass(UnfittedError, NotFittedError)
        (True, True)
    """


def read_sequences(
    X: Any, transform: str | None, fitted: Any = None
) -> tuple[list[Float[np.ndarray, "T N"]], bool]:
    """Check observations, and return a list of transformed trials, and True if X was a list.

    Raise `InputError` for missing values (NaN), other than real numbers, or another number of
    units.

    Args:
        X: Observations, (bins, units), or a list of such trials.
        transform: Transform of the counts, a key of `TRANSFORMS`: "sqrt", "log" or None.
        fitted: A fitted estimator whose number of units X must have; None for any number.

    Example:
        >>> read_sequences([[4, 0], [1, 1]], "sqrt")
        ([array([[2., 0.],
               [1., 1.]])], False)
    """
    many = isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) > 1
    units = None if fitted is None else fitted.n_features_in_
    trials = []
    # Messages use the words of scikit-learn's checks, because its tests look for these words.
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
    """Return trials padded with zeros to one length, (trials, bins, units), and a mask.

    The mask (trials, bins) is True where a trial has a bin.

    Args:
        trials: Observations of every trial, (bins, units).
        grain: The number of bins is padded to a multiple of this number. Above 1, the number of
            trials is also padded to a power of two, with trials without bins. Other data then
            seldom have a new shape, which would need another compilation.

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
    """Return loadings, means and private variances from factor analysis; bins count as independent.

    The iteration is that of scikit-learn's FactorAnalysis, but here private variances have a floor
    in every iteration (`FLOOR`), because EM could not start from a variance of zero.

    Args:
        ys: Observations, (bins, units), of two bins or more. Every unit must vary.
        latents: Number of factors, at most the number of units.

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

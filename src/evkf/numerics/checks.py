"""Checks of input (numbers, arrays, names), which raise InputError.

In all functions, `where` or `name` is the name of the argument in the error.
"""

import operator
from collections.abc import Collection, Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from evkf.errors import InputError


def real_numbers(value: ArrayLike, where: str) -> np.ndarray:
    """Return input as a NumPy array; raise InputError for complex numbers, text and objects."""
    array = np.asarray(value)
    if array.dtype.kind not in "buif":
        raise InputError(f"{where} of type {array.dtype}", where, "pass real numbers")
    return array


def read_array(value: ArrayLike, shape: tuple[int | None, ...], where: str) -> Array:
    """Return input as a JAX array; raise InputError if not finite or of another shape.

    None in `shape` allows any length of that axis.
    """
    array = real_numbers(value, where)
    fits = array.ndim == len(shape) and all(
        want is None or want == have for want, have in zip(shape, array.shape, strict=True)
    )
    if not fits:
        wanted = tuple("any" if want is None else want for want in shape)
        raise InputError(f"{where} of shape {array.shape}", where, f"pass shape {wanted}")
    if not np.all(np.isfinite(array)):
        raise InputError(f"{where} is not finite", where, "pass finite numbers")
    return jnp.asarray(array, jnp.result_type(float))


def read_positive(value: ArrayLike, shape: tuple[int, ...], where: str) -> Array:
    """Return positive numbers as a JAX array of a given shape.

    Raise InputError if a number is not finite or not above zero, or if the shape is wrong.

    Args:
        value: One number, which is repeated, or an array of shape `shape`.
        shape: Shape of the result.
        where: Name of the argument in the error.

    Example:
        >>> read_positive(0.5, (2,), "noise")
        Array([0.5, 0.5], dtype=float32)
    """
    array = real_numbers(value, where)
    if array.shape not in ((), shape):
        raise InputError(
            f"{where} of shape {array.shape}", where, f"pass a number or shape {shape}"
        )
    if not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise InputError(
            f"{where} must be positive and finite, got {array.tolist()}",
            where,
            "pass values above 0",
        )
    return jnp.asarray(np.broadcast_to(array, shape), jnp.result_type(float))


def check_whole(value: Any, least: int, name: str) -> None:
    """Raise InputError if a value is not a whole number, or is smaller than `least`.

    Example:
        >>> check_whole(2, 1, "latents")
    """
    try:
        fits = operator.index(value) >= least
    except TypeError:
        fits = False
    if not fits:
        raise InputError(f"{name} = {value!r}", name, f"pass a whole number, {least} or more")


def check_even(value: Any, name: str) -> None:
    """Raise InputError if a value is not an even whole number, two or more.

    Numbers of samples must be even, because samples are drawn in pairs of opposite sign.

    Example:
        >>> check_even(64, "num_samples")
    """
    if not isinstance(value, int | np.integer) or value < 2 or value % 2:
        raise InputError(f"{name} = {value!r}", name, "pass an even number, 2 or more")


def check_positive(**values: float) -> None:
    """Raise InputError if a number is not finite and above zero.

    Each argument is a number to check; its keyword is the name of the number in the error.

    Example:
        >>> check_positive(rate=0.01)
    """
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise InputError(f"{name} = {value}", name, "pass a finite number above zero")


def check_positive_whole(**values: Any) -> None:
    """Raise InputError if a value is not a whole number, one or more.

    Each argument is a value to check; its keyword is the name of the value in the error.

    Example:
        >>> check_positive_whole(window=10, steps=1)
    """
    for name, value in values.items():
        check_whole(value, 1, name)


def check_choice(value: str, choices: Collection[str], where: str) -> None:
    """Raise InputError if a value is not one of the choices.

    Example:
        >>> check_choice("relu", ("exp", "softplus"), "link")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: unknown link 'relu' (in link): choose one of ('exp', 'softplus')
    """
    if value not in choices:
        raise InputError(f"unknown {where} {value!r}", where, f"choose one of {tuple(choices)}")


def first_of(names: Iterable[Any], most: int = 5) -> str:
    """Return the first `most` names as text, separated by commas.

    The text ends in an ellipsis if there are more names.

    Example:
        >>> first_of([3, 5]), first_of("abcdefgh")
        ('3, 5', 'a, b, c, d, e, …')
    """
    each = [str(name) for name in names]
    return ", ".join([*each[:most], *["…"][: len(each) > most]])


def check_known(kind: str, name: str, names: Collection[str], where: str) -> None:
    """Raise InputError if a name is not one of the known names.

    Args:
        kind: What the name belongs to, for the error, such as "column".
        name: The name to check.
        names: All known names.
        where: File or argument, for the error.

    Example:
        >>> check_known("column", "goal", ["target", "reward"], "day1.npz: trials")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no column 'goal' (in day1.npz: trials): choose among target, reward
    """
    if name not in names:
        remedy = f"choose among {', '.join(names)}" if names else "leave it out: there is none"
        raise InputError(f"no {kind} {name!r}", where, remedy)

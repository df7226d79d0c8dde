"""Checks of input: numbers, arrays and names, refused by an `InputError`."""

import operator
from collections.abc import Collection, Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from evkf.errors import InputError


def real_numbers(value: ArrayLike, where: str) -> np.ndarray:
    """Return input as an array of real numbers; refuse complex numbers, text and objects."""
    array = np.asarray(value)
    if array.dtype.kind not in "buif":
        raise InputError(f"{where} of type {array.dtype}", where, "pass real numbers")
    return array


def read_array(value: ArrayLike, shape: tuple[int | None, ...], where: str) -> Array:
    """Check and convert a finite array; None in the shape stands for any length."""
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
    """Check and convert positive numbers, broadcast to a shape.

    Args:
        value: A number, or an array of that shape.
        shape: Shape of the result.
        where: Name of the argument in an error.

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
    """Refuse input that is not a whole number, or is too small.

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
    """Refuse input that is not an even number, two or more: draws come in antithetic pairs.

    Example:
        >>> check_even(64, "num_samples")
    """
    if not isinstance(value, int | np.integer) or value < 2 or value % 2:
        raise InputError(f"{name} = {value!r}", name, "pass an even number, 2 or more")


def check_positive(**values: float) -> None:
    """Refuse numbers that are not positive and finite; keywords are their names.

    Example:
        >>> check_positive(rate=0.01)
    """
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise InputError(f"{name} = {value}", name, "pass a finite number above zero")


def check_positive_whole(**values: Any) -> None:
    """Refuse input that is not a whole number, one or more; keywords are the names.

    Example:
        >>> check_positive_whole(window=10, steps=1)
    """
    for name, value in values.items():
        check_whole(value, 1, name)


def check_choice(value: str, choices: Collection[str], where: str) -> None:
    """Refuse a value that is none of the choices of an argument.

    Example:
        >>> check_choice("relu", ("exp", "softplus"), "link")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: unknown link 'relu' (in link): choose one of ('exp', 'softplus')
    """
    if value not in choices:
        raise InputError(f"unknown {where} {value!r}", where, f"choose one of {tuple(choices)}")


def first_of(names: Iterable[Any], most: int = 5) -> str:
    """List the first few names in a sentence.

    Example:
        >>> first_of([3, 5]), first_of("abcdefgh")
        ('3, 5', 'a, b, c, d, e, …')
    """
    each = [str(name) for name in names]
    return ", ".join([*each[:most], *["…"][: len(each) > most]])


def check_known(kind: str, name: str, names: Collection[str], where: str) -> None:
    """Refuse a name that does not exist.

    Example:
        >>> check_known("column", "goal", ["target", "reward"], "day1.npz: trials")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: no column 'goal' (in day1.npz: trials): choose among target, reward
    """
    if name not in names:
        remedy = f"choose among {', '.join(names)}" if names else "leave it out: there is none"
        raise InputError(f"no {kind} {name!r}", where, remedy)

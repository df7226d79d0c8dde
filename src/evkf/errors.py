"""Exceptions of the package. Each error says what the problem is, where it is, and a remedy."""

from typing import Any


class EvkfError(Exception):
    """Base class of every exception that this package raises on purpose."""


class InputError(EvkfError, ValueError):
    """Error for input that cannot be used.

    Attributes:
        what: The problem, with the offending value.
        where: The argument, file or index where it was found.
        remedy: An action that solves the problem.

    Example:
        >>> raise InputError("negative count -3", "ys[10, 4]", "pass counts, or mask the bin")
        Traceback (most recent call last):
        ...
        evkf.errors.InputError: negative count -3 (in ys[10, 4]): pass counts, or mask the bin
    """

    def __init__(self, what: str, where: str, remedy: str):
        self.what, self.where, self.remedy = what, where, remedy
        super().__init__(f"{what} (in {where}): {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are sent between processes by pickling these arguments.
        return type(self), (self.what, self.where, self.remedy)

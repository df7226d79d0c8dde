"""Parameters of an estimator, by scikit-learn's conventions: those of its constructor."""

import inspect
from typing import Any, Self

from evkf.errors import InputError


class WithParams:
    """An estimator whose constructor stores its arguments, and does nothing else.

    Example:
        >>> class Smoother(WithParams):
        ...     def __init__(self, width: float = 1.0, seed: int = 0):
        ...         self.width, self.seed = width, seed
        >>> Smoother().set_params(width=2.0)
        Smoother(width=2.0)
        >>> Smoother(2.0).get_params()
        {'width': 2.0, 'seed': 0}
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor; there is nothing deeper."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor, for the next `fit`."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise InputError(f"no parameter {name!r}", "params", f"choose among {list(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        params = {k: v for k, v in self.get_params().items() if not _same(v, defaults[k].default)}
        given = ", ".join(f"{name}={value!r}" for name, value in params.items())
        return f"{type(self).__name__}({given})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags, TransformerTags

        return Tags(None, TargetTags(required=False), TransformerTags(preserves_dtype=[]))


def _same(one: Any, other: Any) -> bool:
    plain = isinstance(one, str | int | float | None) and isinstance(other, type(one))
    return one is other or (plain and one == other)

"""Docstrings and signatures as the site shows them.

`Example:` is the section that Griffe calls `Examples:`, and a `NamedTuple` is called with its
fields.
"""

from typing import Any

from griffe import (
    Attribute,
    Class,
    Extension,
    Function,
    Object,
    Parameter,
    ParameterKind,
    Parameters,
)

ANY_WAY = ParameterKind.positional_or_keyword


class Examples(Extension):
    """Renames the section, so that doctests are shown as code."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called with every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")


class Fields(Extension):
    """Gives named tuples the signature that they are called with."""

    def on_class(self, *, cls: Class, **kwargs: Any) -> None:
        """Called with every class."""
        if "NamedTuple" not in map(str, cls.bases) or "__init__" in cls.members:
            return
        fields = [
            Parameter(name, annotation=field.annotation, kind=ANY_WAY, default=field.value)
            for name, field in cls.members.items()
            if isinstance(field, Attribute)
            and field.annotation is not None
            and "property" not in field.labels
        ]
        itself = Parameter("self", kind=ANY_WAY)
        cls.set_member("__init__", Function("__init__", parameters=Parameters(itself, *fields)))

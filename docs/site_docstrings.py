"""Docstrings as the site reads them: `Example:` is the section that Griffe calls `Examples:`."""

from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Renames the section, so that doctests are shown as code."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called with every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")

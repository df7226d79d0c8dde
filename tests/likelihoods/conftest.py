"""Quick compilation for this folder."""

from tests.quick import quick_compilation

__all__ = ["quick_compilation"]

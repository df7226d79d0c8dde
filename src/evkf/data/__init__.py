"""Read files of many formats as a `Recording`, and write recordings and estimates to files."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

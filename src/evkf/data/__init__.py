"""Recordings in and out: files of many kinds become a `Recording`, estimates become files."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

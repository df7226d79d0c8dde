"""Recordings in: files of many kinds become a `Recording`."""

from evkf.data.recording import Recording

__all__ = ["Recording"]

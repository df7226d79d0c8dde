"""Real-time inference and learning of neural dynamics."""

__version__ = "0.1.0"

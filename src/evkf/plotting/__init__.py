"""Figures with matplotlib: their style, and those of recordings."""

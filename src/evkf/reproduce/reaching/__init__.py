"""Reaching (Fig. 4)."""

"""Plots made with matplotlib."""

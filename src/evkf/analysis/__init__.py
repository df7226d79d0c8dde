"""Smoothing, forecasts, phase portraits, metrics and decoding of filtered states."""

"""Smoothing, forecasts, phase portraits, metrics and decoding of what a filter infers."""

"""Gamma dynamics (appendix)."""

"""The gaps between bounds and log evidence (appendix)."""

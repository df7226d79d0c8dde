"""The gaps between bounds and evidence (appendix)."""

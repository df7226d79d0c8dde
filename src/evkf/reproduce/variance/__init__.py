"""The variance that averaging natural parameters loses."""

"""The live engine: bins come in one at a time and are filtered at once."""

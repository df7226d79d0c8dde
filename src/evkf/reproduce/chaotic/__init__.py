"""Table 1: a chaotic network."""

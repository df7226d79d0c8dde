"""Table 1: filtering a chaotic network."""

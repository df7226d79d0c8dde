"""Table 2: the Van der Pol oscillator."""

"""Table 2: learning the Van der Pol oscillator."""

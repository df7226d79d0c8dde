"""Table 3: continuous Bernoulli dynamics."""

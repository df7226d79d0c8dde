"""The expected log-likelihood for every pair of family and likelihood."""

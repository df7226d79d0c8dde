"""Code that reproduces the tables and figures of the paper, one package for each experiment."""

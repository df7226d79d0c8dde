"""Transports of rigs: each speaks to its peer in a process of its own, and sends plain frames."""

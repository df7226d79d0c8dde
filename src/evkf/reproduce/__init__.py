"""The tables and figures of the paper, one room each."""

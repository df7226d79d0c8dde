"""A live session over the web: frames in, estimates out, metrics, and the operator's actions."""

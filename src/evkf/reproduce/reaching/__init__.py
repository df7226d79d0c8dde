"""Reaching: motor cortex and hand velocity (Figure 4)."""

"""Tests run in float64; the float32 set passes float32 arrays."""

import jax

jax.config.update("jax_enable_x64", True)

r"""Observation models $p_\psi(y|z)$: the distribution of an observation given the latent state."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

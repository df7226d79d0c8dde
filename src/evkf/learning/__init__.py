"""Learning while streaming: dynamics, noise, readout and initial state."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

"""Real-time inference and learning of neural dynamics.

The exponential family variational Kalman filter of Dowling, Zhao & Park (ICLR 2023), on JAX: a
stream of binned spikes in; a filtering distribution per bin, forecasts and the dynamics out.

Public names stand in `__init__.pyi`, here and in the packages below, and are imported at first use.
"""

import lazy_loader as lazy

__version__ = "1.0.0"

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

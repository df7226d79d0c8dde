r"""Models of the latent dynamics $p_\theta(z_t | z_{t-1}, u_t)$, with state z and input u."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

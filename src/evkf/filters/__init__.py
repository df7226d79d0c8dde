"""Online filters: one `step` a bin, or a scan of it over a sequence."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

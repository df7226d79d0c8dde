"""Online filters: call `step` for each bin, or `scan_filter` for a whole sequence."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

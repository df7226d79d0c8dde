"""Linear algebra, special functions, quadrature, covariances, and checks of what users pass in."""

import evkf.types  # noqa: F401 - sets the precision of matrix products

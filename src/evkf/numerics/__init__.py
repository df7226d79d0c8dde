"""Linear algebra, special functions, quadrature, covariances, and checks of input."""

import evkf.types  # noqa: F401 - sets the precision of matrix products

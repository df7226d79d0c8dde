"""Linear algebra, special functions, quadrature, covariances, and checks of input."""

import evkf.types as _types  # this import sets the precision of matrix products

del _types

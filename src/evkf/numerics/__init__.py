"""Linear algebra, special functions, quadrature, covariances, and checks of input."""

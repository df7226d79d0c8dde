"""Linear algebra, special functions, quadrature, covariances, and checks of what users pass in."""

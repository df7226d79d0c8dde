"""The exponential family variational Kalman filter: prediction, updates, and the filter itself."""

"""Estimators in the manner of scikit-learn: EVKF and the baselines."""

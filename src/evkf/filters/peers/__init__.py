"""The filters that the paper compares with, one file a method.

Files that several methods share: `gain` (Kalman-type updates), `cloud` (sampled states),
`single_step` and `learned` (filters that learn their model), `kernel_ridge` (OVS).
"""

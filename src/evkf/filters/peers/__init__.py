"""The filters that eVKF is compared with in the paper, one file for each method.

Helper files: `gain` (updates of Kalman type), `cloud` (filters that sample latent states),
`single_step` and `learned` (filters that learn their model), `kernel_ridge` (used by `ovs`).
"""

"""Independent references that tests compare with."""

import numpy as np
from filterpy.kalman import KalmanFilter


def kalman_loop(A, Q, C, b, R, m, P, ys, masks):
    """Run a textbook Kalman filter in NumPy on observed channels; also return log evidences."""
    means, covs, evidence = [], [], []
    for y, mask in zip(ys, masks, strict=True):
        m, P = A @ m, A @ P @ A.T + Q
        Co, r = C[mask], (y - b)[mask] - C[mask] @ m
        S = Co @ P @ Co.T + R[np.ix_(mask, mask)]
        gain = np.linalg.solve(S, Co @ P).T
        log_det = np.linalg.slogdet(S)[1]
        evidence.append(
            -0.5 * (r @ np.linalg.solve(S, r) + log_det + mask.sum() * np.log(2 * np.pi))
        )
        m, P = m + gain @ r, P - gain @ S @ gain.T
        P = 0.5 * (P + P.T)
        means.append(m)
        covs.append(P)
    return np.array(means), np.array(covs), np.array(evidence)


def filterpy_loop(A, Q, C, b, R, m, P, ys, masks):
    """Run the Kalman filter of filterpy on observed channels."""
    means, covs = [], []
    for y, mask in zip(ys, masks, strict=True):
        kf = KalmanFilter(dim_x=len(m), dim_z=max(int(mask.sum()), 1))
        kf.x, kf.P, kf.F, kf.Q = m.copy(), P.copy(), A, Q
        kf.predict()
        if mask.any():
            kf.H, kf.R = C[mask], R[np.ix_(mask, mask)]
            kf.update((y - b)[mask])
        m, P = kf.x, kf.P
        means.append(m)
        covs.append(P)
    return np.array(means), np.array(covs)

"""Write `version_1_*.safetensors` and `version_1.npz` with evkf 1.0.0, in double precision.

Run once, with version 1 on the path: JAX_ENABLE_X64=true python tests/estimators/make_version_1.py
"""

from pathlib import Path

import numpy as np
from evkf.estimator import EVKF

import evkf
from evkf.dynamics import Linear

assert evkf.__version__ == "1.0.0"
HERE = Path(__file__).parent
SMALL = {"latents": 2, "hidden": 4, "warm_up": 60, "ring": 32}

rng = np.random.default_rng(0)
angles = 0.2 * np.arange(160)[:, None] + np.arange(6)
ys = rng.poisson(np.exp(0.5 + np.sin(angles)))
us = rng.normal(size=(160, 1))

fitted = EVKF(**SMALL, passes=2, learn=["dynamics", "noise", "readout"]).fit(ys[:100])
fitted.save(HERE / "version_1_fitted.safetensors", {"units": list("abcdef"), "bin_width": 0.02})
numbers = {"fitted_transform": fitted.transform(ys[100:]), "fitted_forecast": fitted.predict_one()}
fitted.partial_fit(ys[100:])
numbers |= {"fitted_mean": fitted.estimate_.mean, "fitted_cov": fitted.estimate_.cov}
numbers |= {"fitted_raw": fitted.state_.raw, "fitted_score": fitted.score(ys)}

push = Linear(0.9 * np.eye(2), noise=0.1, input_weight=[[0.5], [0.0]])
warming = EVKF(**SMALL, dynamics=push, watch=True, num_inputs=1, bin_width=0.02, seed=3)
for y, u in zip(ys[:40], us[:40], strict=True):
    warming.learn_one(y, u=u)
warming.save(HERE / "version_1_warming.safetensors")
numbers["warming_forecast"] = warming.predict_one()
warming.partial_fit(ys[40:100], inputs=us[40:100])
for y, u in zip(ys[100:], us[100:], strict=True):
    warming.learn_one(y, u=u)
numbers |= {"warming_mean": warming.estimate_.mean, "warming_cov": warming.estimate_.cov}
numbers |= {"warming_raw": warming.state_.raw, "warming_nats": warming.evidence_.nats}
np.savez(HERE / "version_1.npz", ys=ys, us=us, **numbers)

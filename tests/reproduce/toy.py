"""Tasks that take no time, and behave as a specification says."""

import os
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import threadpool_info


def run(spec):
    """Rows of squares; may wait, fail, or take the process down, once or always."""
    folder = Path(spec["folder"])
    with (folder / "computed").open("a") as log:
        log.write(f"{spec['seeds'][0]}\n")
    time.sleep(spec.get("seconds", 0))
    if spec.get("fails"):
        raise ArithmeticError("as told")
    dies, died = spec.get("dies"), folder / "died"
    if dies == "always" or (dies == "once" and not died.exists()):
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    rng = np.random.default_rng(spec["seeds"])
    matrix = jnp.asarray(rng.normal(size=(200, 200)))
    where = {
        "precision": str(matrix.dtype),
        "backend": jax.default_backend(),
        "threads": [os.environ["NPROC"], *{pool["num_threads"] for pool in threadpool_info()}],
        "flags": os.environ["XLA_FLAGS"],
        "norm": float(jnp.linalg.norm(jnp.linalg.cholesky(matrix @ matrix.T))),
    }
    return {"rows": [{"trial": seed, "square": seed**2} | where for seed in spec["seeds"]]}

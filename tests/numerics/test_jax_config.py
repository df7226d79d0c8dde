"""Settings for streams: made before JAX computes, or refused; results stay as they are."""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import evkf
from evkf.dynamics import VanDerPol
from evkf.errors import InputError
from evkf.likelihoods import Poisson
from evkf.numerics.jax_config import SMALL_LOOP, with_small_loops

PROGRAM = """
import os
import evkf
evkf.low_latency()
evkf.low_latency()
from tests.numerics.test_jax_config import means
found = means()
evkf.low_latency()
print(os.environ["XLA_FLAGS"])
print(*found)
"""
ROOT = Path(__file__).resolve().parents[2]


def means() -> list[float]:
    """Return the means of a small filter."""
    model = evkf.Model(VanDerPol(), Poisson(np.eye(2), bin_width=0.5))
    ys = np.arange(20.0).reshape(10, 2) % 3
    _, trace = evkf.scan_filter(evkf.VariationalKalmanFilter(), model, ys)
    return np.asarray(trace.belief.mean).ravel().tolist()


def test_results_stay_as_they_are():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    flags, numbers = done.stdout.splitlines()
    assert SMALL_LOOP in flags
    with jax.enable_x64(False):
        assert [float(number) for number in numbers.split()] == pytest.approx(means(), abs=1e-4)


def test_too_late_is_refused():
    jax.devices()
    with pytest.raises(InputError, match="computed already") as caught:
        evkf.low_latency()
    assert "before" in caught.value.remedy


@pytest.mark.parametrize(
    ("flags", "want"),
    [
        ("", f"--xla_backend_extra_options={SMALL_LOOP}"),
        ("--a=1", f"--a=1 --xla_backend_extra_options={SMALL_LOOP}"),
        (
            "--xla_backend_extra_options=b=2 --a=1",
            f"--xla_backend_extra_options=b=2,{SMALL_LOOP} --a=1",
        ),
        (
            "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=7",
            "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=7",
        ),
    ],
)
def test_flags_are_added_to_those_there_are(flags: str, want: str):
    assert with_small_loops(flags) == want

"""Other packages on the benchmark's model: dynamax, filterpy and particles.

They run in an environment of their own (`environment`), as dynamax needs packages that conflict
with others'. `compare` hands all the same recording and the same model. dynamax has no public
single step, only a scan over a recording, so ours is timed as a scan (`scan_filter`) too.
"""

import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import evkf
from evkf.dynamics import ChaoticRNN, VanDerPol
from evkf.errors import InputError
from evkf.families import GaussianBelief
from evkf.filters import VariationalKalmanFilter, scan_filter
from evkf.likelihoods import Poisson
from evkf.model import Model, simulate
from speed import others_worker as worker
from speed.core import Figure, Part, Say
from speed.steps import Cell, build

REQUIREMENTS = Path(__file__).with_name("others.txt")
MARKER = "evkf-other-filters"
"""The file in an environment that says it is complete, and of which requirements."""
CELLS = (Cell(2, 100, "poisson"), Cell(10, 200, "poisson"))
PACKAGES = tuple(worker.PACKAGES)
ALIKE = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_X64": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Settings of the other process, besides those of this one such as XLA_FLAGS."""


SEEDS, QUICK_SEEDS = 5, 2
BINS, QUICK_BINS = 2000, 300
PARTICLES = 1000


class Other(NamedTuple):
    """One filter on the recording of a cell.

    Attributes:
        L: Latent dimensions.
        N: Channels.
        T: Bins.
        package: Whose filter.
        variant: Which of its filters.
        version: Of the package.
        step_us: Time per step in µs: the median over runs through the whole recording, nothing
            compiled in them, divided by T. evkf and dynamax scan; the others are called bin by bin.
        log_density: Mean log density of the true state under the filtering belief, nats per bin;
            of the Gaussian with the particles' moments for a particle filter. NaN if a bin is lost.
        rmse: Root mean square error of the filtering mean.
        bins_lost: Bins without a finite mean and a positive definite covariance.
        empty_us: Median time of a compiled `x + 1` on a scalar in the same process.
    """

    L: int
    N: int
    T: int
    package: str
    variant: str
    version: str
    step_us: float
    log_density: float
    rmse: float
    bins_lost: int
    empty_us: float


def run(quick: bool, seed: int, say: Say, folder: Path | None = None) -> Part:
    """Recordings of several seeds; dynamax on all of them, the others on the first alone.

    Args:
        quick: Two seeds, short recordings, dynamax alone.
        seed: The first of the seeds.
        say: Told of every filter.
        folder: Of the environment; `cache_folder()` when left out.
    """
    python = environment(folder or cache_folder(), say)
    rows: list[dict] = []
    figures = []
    for cell in CELLS:
        found: list[list[Other]] = []
        for k in range(seed, seed + (QUICK_SEEDS if quick else SEEDS)):
            packages = PACKAGES if k == seed and not quick else PACKAGES[:1]
            found.append(compare(python, cell, k, QUICK_BINS if quick else BINS, packages))
            for row in found[-1]:
                rows.append({"seed": k, **row._asdict()})
                say(
                    f"L = {row.L}, N = {row.N}, seed {k}, {row.package} {row.variant}: "
                    f"{row.step_us:.1f} µs a step, {row.log_density:.3f} nats a bin"
                )
        figures += against_dynamax(cell, found)
    return Part(rows, figures)


def against_dynamax(cell: Cell, found: Sequence[Sequence[Other]]) -> list[Figure]:
    """Time against the fastest of its filters, log density against the best of every seed.

    A seed on which all of its filters lost bins says nothing of their density, and is left out.
    """
    theirs: dict[str, list[float]] = {}
    for row in (row for rows in found for row in rows if row.package == "dynamax"):
        theirs.setdefault(row.variant, []).append(row.step_us)
    ours = np.mean([rows[0].step_us for rows in found])
    times = float(min(np.mean(each) for each in theirs.values()) / ours)
    pairs = [(rows[0], nearest(rows)) for rows in found]
    more = [own.log_density - other.log_density for own, other in pairs if other is not None]
    error = float(np.std(more, ddof=1) / math.sqrt(len(more))) if len(more) > 1 else None
    size = f"L = {cell.L}, N = {cell.N}"
    gained = float(np.mean(more)) if more else math.inf
    name = f"log density above the better of dynamax's filters, {size}, {len(more)} seeds"
    return [
        Figure(
            f"a scan is faster than the faster of dynamax's filters, {size}",
            times,
            "times",
            1.0,
            True,
            "others",
        ),
        Figure(name, gained, "nats per bin", 0.0, True, "others", error),
    ]


def cache_folder() -> Path:
    """Default folder of the environment, in the user's folder of caches."""
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "evkf" / "others"


def environment(folder: Path, say: Say) -> Path:
    """The interpreter of the environment in a folder, made there the first time (minutes).

    Args:
        folder: Where it is or will be; a folder with anything else in it is refused.
        say: Told what happens.
    """
    python = folder.absolute() / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    marker = folder / MARKER
    known = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if marker.is_file() and marker.read_text(encoding="utf-8") == known and python.exists():
        return python
    if folder.exists() and not folder.is_dir():
        raise InputError("a file", str(folder), "name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        raise InputError("a folder with other things in it", str(folder), "name an empty one")
    say(f"making an environment of {', '.join(PACKAGES)} in {folder}")
    _call([sys.executable, "-m", "venv", "--clear", str(folder)], folder)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _call([*pip, "--no-deps", "-r", str(REQUIREMENTS)], folder)
    marker.write_text(known, encoding="utf-8")
    return python


def _call(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = _last_line(done.stderr) or _last_line(done.stdout)
        raise InputError(
            f"no environment of other filters: {' '.join(command[1:4])} failed: {said}",
            str(folder),
            "see that the package index can be reached and that there is space, and run it again",
        )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [""])[-1]


def compare(
    python: Path,
    cell: Cell,
    seed: int,
    num_bins: int = 2000,
    packages: Sequence[str] = PACKAGES,
    repeats: int = 5,
) -> list[Other]:
    """Filter one simulated recording with others and ours, one after another; all on the CPU.

    Ours and dynamax work in float32, filterpy and particles in float64. The others get one thread
    of BLAS: with two on two cores that others used too, dynamax took about seven times (EKF) and
    three times (UKF) as long at L = 10 and N = 200, no longer at L = 2. Ours works on matrices of
    L by L and is left as it is.

    Args:
        python: The interpreter that has the packages, as `environment` returns it.
        cell: The size; its likelihood must be "poisson".
        seed: Of the model, the recording and the particles.
        num_bins: Length of the recording.
        packages: Among `PACKAGES`.
        repeats: Timed runs through the recording.

    Returns:
        Ours, then the others'.
    """
    if cell.likelihood != "poisson":
        raise InputError(f"likelihood {cell.likelihood!r}", "cell", "compare on poisson")
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.enable_x64(False), jax.default_device(cpu):
        model = build(cell, seed)
        zs, ys = (np.asarray(x) for x in simulate(model, jax.random.key(seed), num_bins))
        system, arrays = problem(model, ys)
    size = (cell.L, cell.N, num_bins)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "arrays.npz", zs=zs, **arrays)  # pyright: ignore[reportArgumentType]
        spec = {
            "arrays": str(folder / "arrays.npz"),
            "system": system,
            "packages": list(packages),
            "repeats": repeats,
            "particles": PARTICLES,
            "seed": seed,
        }
        found = _work(python, spec, folder)
    rows = [Other(*size, **row, empty_us=found["empty_us"]) for row in found["rows"]]
    with jax.enable_x64(False), jax.default_device(cpu):
        ours = Other(*size, **_ours(model, ys, zs, repeats))
    return [ours, *rows]


def nearest(rows: Sequence[Other]) -> Other | None:
    """The filter of dynamax with the best log density; None if none kept all bins."""
    kept = [row for row in rows if row.package == "dynamax" and math.isfinite(row.log_density)]
    return max(kept, key=lambda row: row.log_density, default=None)


def problem(model: Model, ys: np.ndarray) -> tuple[str, dict[str, np.ndarray]]:
    """The model and the recording as the worker reads them: the system's name, and arrays."""
    dynamics, likelihood, prior = model.dynamics, model.likelihood, model.prior
    assert isinstance(dynamics, VanDerPol | ChaoticRNN)
    assert isinstance(likelihood, Poisson)
    assert isinstance(prior, GaussianBelief)
    arrays = {
        "m": prior.mean,
        "P": prior.cov,
        "Q": dynamics.noise.matrix(),
        "C": likelihood.C,
        "b": likelihood.b,
        "bin_width": likelihood.bin_width,
        "gamma": dynamics.gamma,
        "tau": dynamics.tau,
        "dt": dynamics.dt,
        "ys": ys,
    }
    if isinstance(dynamics, ChaoticRNN):
        arrays["weight"] = dynamics.weight
    system = "van_der_pol" if isinstance(dynamics, VanDerPol) else "chaotic_rnn"
    return system, {name: np.asarray(value) for name, value in arrays.items()}


def _ours(model: Model, ys: np.ndarray, zs: np.ndarray, repeats: int) -> dict:
    filter = VariationalKalmanFilter()
    belief = scan_filter(filter, model, ys)[1].belief
    assert isinstance(belief, GaussianBelief)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(scan_filter(filter, model, ys))
        times.append(time.perf_counter() - start)
    return {
        "package": "evkf",
        "variant": type(filter).__name__,
        "version": evkf.__version__,
        "step_us": 1e6 * statistics.median(times) / len(ys),
        **worker.scores(np.asarray(belief.mean), np.asarray(belief.cov), zs),
        "empty_us": 1e6 * worker.empty_call(),
    }


def _work(python: Path, spec: dict, folder: Path) -> dict:
    """Run the worker; -I keeps the modules of this folder from standing in for Python's own."""
    (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    result = folder / "result.json"
    command = [str(python), "-I", worker.__file__, str(folder / "spec.json"), str(result)]
    install = (
        "pass what environment(folder) returns, or install the packages there: "
        f"{python} -m pip install --no-deps -r {REQUIREMENTS}"
    )
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env={**os.environ, **ALIKE}
        )
    except OSError as error:
        raise InputError(f"no interpreter: {error.strerror}", str(python), install) from error
    if done.returncode:
        said = _last_line(done.stderr) or f"exit code {done.returncode}"
        remedy = install if "ModuleNotFoundError" in said else "leave out the package that failed"
        raise InputError(f"the other filters did not run: {said}", str(python), remedy)
    return json.loads(result.read_text(encoding="utf-8"))

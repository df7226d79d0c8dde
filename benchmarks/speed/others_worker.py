# pyright: reportMissingImports=false
"""Filters of other packages on one recording: run by the interpreter of their own environment.

`python -I others_worker.py SPEC.json RESULT.json`. The spec names a file of arrays, the
packages and how often to repeat; the result has one row for every filter. Imports nothing of evkf,
and a package only when it is asked for.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

EMPTY_CALLS = 1000


class Problem(NamedTuple):
    """A model with additive noise and Poisson counts, and what was recorded.

    $z_t \\sim N(f(z_{t-1}), Q)$ and $y_t \\sim \\text{Poisson}(\\Delta e^{C z_t + b})$, where $z_0
    \\sim N(m, P)$ comes before the first bin.

    Attributes:
        system: "van_der_pol" or "chaotic_rnn".
        arrays: m, P, Q, C, b, bin_width, the observations ys, and what the system needs.
        repeats: Timed runs over the whole recording, of which the median is taken.
        particles: Particles of the particle filter.
        seed: Its seed.
    """

    system: str
    arrays: dict[str, np.ndarray]
    repeats: int
    particles: int
    seed: int

    def mean(self, z: Any, xp: ModuleType = np) -> Any:
        """$f(z)$ for a state, or for states along the last axis; `xp` is NumPy or jax.numpy."""
        a = self.arrays
        if self.system == "van_der_pol":
            one, two = z[..., 0], z[..., 1]
            drift = xp.stack([two, a["gamma"] * (1 - one**2) * two - one], -1)
        else:
            drift = a["gamma"] * xp.tanh(z) @ a["weight"].T - z
        return z + a["dt"] / a["tau"] * drift

    def jacobian(self, z: np.ndarray) -> np.ndarray:
        """The derivative of f at a state."""
        a = self.arrays
        if self.system == "van_der_pol":
            slope = np.array(
                [[0, 1], [-2 * a["gamma"] * z[0] * z[1] - 1, a["gamma"] * (1 - z[0] ** 2)]]
            )
        else:
            slope = a["gamma"] * a["weight"] * (1 - np.tanh(z) ** 2) - np.eye(len(z))
        return np.eye(len(z)) + np.reshape(a["dt"] / a["tau"], (-1, 1)) * slope

    def rate(self, z: Any, xp: ModuleType = np) -> Any:
        """Expected counts of a bin."""
        a = self.arrays
        return a["bin_width"] * xp.exp(z @ a["C"].T + a["b"])

    def double(self) -> "Problem":
        """Convert arrays to float64, which NumPy packages work with."""
        return self._replace(arrays={k: v.astype(float) for k, v in self.arrays.items()})


class Run(NamedTuple):
    """One filter on the recording: seconds a step, means (T, L) and covariances (T, L, L)."""

    variant: str
    step_s: float
    mean: np.ndarray
    cov: np.ndarray


def scores(mean: np.ndarray, cov: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Measure how near Gaussian beliefs are to the true states.

    Returns:
        `log_density`, the mean log density of the true state in nats per bin; `rmse` of the mean,
        over bins and latents; `bins_lost`, those without finite mean and positive definite
        covariance. One lost bin makes the density NaN.
    """
    mean, cov, truth = (np.asarray(x, float) for x in (mean, cov, truth))
    finite = np.isfinite(mean).all(axis=1) & np.isfinite(cov).all(axis=(1, 2))
    error = truth - mean
    symmetric = 0.5 * (cov + np.swapaxes(cov, 1, 2))[finite]
    values, vectors = np.linalg.eigh(symmetric)
    along = np.einsum("tij,ti->tj", vectors, error[finite])
    good = (values > 0).all(axis=1)
    lost = len(truth) - int(good.sum())
    density = np.nan
    if lost == 0:
        density = -0.5 * float(np.mean(np.sum(along**2 / values + np.log(2 * np.pi * values), 1)))
    return {
        "log_density": density,
        "rmse": float(np.sqrt(np.mean(error**2))),
        "bins_lost": lost,
    }


def empty_call() -> float:
    """Median seconds of a compiled `x + 1` on a scalar, read back; NaN without jax."""
    if find_spec("jax") is None:
        return np.nan
    import jax
    import jax.numpy as jnp

    one = jnp.ones(())
    empty = jax.jit(lambda x: x + 1).lower(one).compile()
    times = []
    for _ in range(EMPTY_CALLS):
        start = time.perf_counter()
        np.asarray(empty(one))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def run_dynamax(problem: Problem) -> Iterator[Run]:
    """The conditional-moments Gaussian filter, compiled whole, in float32.

    Its first belief is about the first bin: the prior, predicted once by its own integrals. One
    iteration, its default: further ones would condition on the same counts again. Only means and
    covariances are asked for, so that the compiler may leave out its log-likelihood.
    """
    import jax
    import jax.numpy as jnp
    import tensorflow_probability.substrates.jax.distributions as tfd
    from dynamax.generalized_gaussian_ssm import (
        EKFIntegrals,
        ParamsGGSSM,
        UKFIntegrals,
        conditional_moments_gaussian_filter,
    )

    # As on the command line of evkf: calls that are read back at once need no second thread.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    on_device = {name: jnp.asarray(x, jnp.float32) for name, x in problem.arrays.items()}
    problem = problem._replace(arrays=on_device)  # pyright: ignore[reportArgumentType]

    def f(z: Any) -> Any:
        return problem.mean(z, jnp)

    for variant, integrals in (("EKF", EKFIntegrals()), ("UKF", UKFIntegrals())):

        def run(ys: Any, integrals: Any = integrals) -> tuple:
            m, P, Q = (on_device[name] for name in "mPQ")
            params = ParamsGGSSM(
                initial_mean=integrals.gaussian_expectation(f, m, P),
                initial_covariance=integrals.gaussian_cross_covariance(f, f, m, P) + Q,
                dynamics_function=f,
                dynamics_covariance=Q,
                emission_mean_function=lambda z: problem.rate(z, jnp),
                emission_cov_function=lambda z: jnp.diag(problem.rate(z, jnp)),
                emission_dist=lambda rate, cov: tfd.Poisson(rate=rate),
            )
            found = conditional_moments_gaussian_filter(params, integrals, ys, num_iter=1)
            return found.filtered_means, found.filtered_covariances

        compiled = jax.jit(run).lower(on_device["ys"]).compile()
        mean, cov = jax.block_until_ready(compiled(on_device["ys"]))
        times = []
        for _ in range(problem.repeats):
            start = time.perf_counter()
            jax.block_until_ready(compiled(on_device["ys"]))
            times.append(time.perf_counter() - start)
        yield Run(variant, statistics.median(times) / len(mean), np.asarray(mean), np.asarray(cov))


Step = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def run_loop(variant: str, problem: Problem, make: Callable[[], Step]) -> Run:
    """A filter called bin by bin from Python; bins from where it breaks down on are NaN."""
    ys = problem.arrays["ys"]
    T, L = len(ys), len(problem.arrays["m"])
    times = []
    mean, cov = np.full((T, L), np.nan), np.full((T, L, L), np.nan)
    for _ in range(problem.repeats):
        step, done = make(), 0
        start = time.perf_counter()
        try:
            for done, y in enumerate(ys, 1):
                mean[done - 1], cov[done - 1] = step(y)
        except (np.linalg.LinAlgError, ValueError):
            mean[done - 1 :], cov[done - 1 :] = np.nan, np.nan
        times.append((time.perf_counter() - start) / done)
    return Run(variant, statistics.median(times), mean, cov)


def run_filterpy(problem: Problem) -> Iterator[Run]:
    """The extended and the unscented filter, given the variance of the predicted counts as R."""
    from filterpy.kalman import (
        ExtendedKalmanFilter,
        MerweScaledSigmaPoints,
        UnscentedKalmanFilter,
    )

    problem = problem.double()
    a = problem.arrays
    N, L = a["C"].shape

    class Extended(ExtendedKalmanFilter):
        def predict_x(self, u: Any = 0) -> None:
            self.F = problem.jacobian(self.x)
            self.x = problem.mean(self.x)

    def extended() -> Step:
        filter = Extended(dim_x=L, dim_z=N)
        filter.x, filter.P, filter.Q = a["m"].copy(), a["P"].copy(), a["Q"]

        def slope(z: np.ndarray) -> np.ndarray:
            return problem.rate(z)[:, None] * a["C"]

        def step(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            filter.predict()
            filter.update(y, slope, problem.rate, R=np.diag(problem.rate(filter.x)))
            return filter.x, filter.P

        return step

    def unscented() -> Step:
        # the weights of dynamax, positive at any L
        points = MerweScaledSigmaPoints(L, alpha=np.sqrt(3), beta=2.0, kappa=1.0)
        filter = UnscentedKalmanFilter(
            L, N, dt=1.0, hx=problem.rate, fx=lambda z, dt: problem.mean(z), points=points
        )
        filter.x, filter.P, filter.Q = a["m"].copy(), a["P"].copy(), a["Q"]

        def step(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            filter.predict()
            filter.update(y, R=np.diag(filter.Wm @ problem.rate(filter.sigmas_f)))
            return filter.x, filter.P

        return step

    with np.errstate(all="ignore"):
        yield run_loop("EKF", problem, extended)
        yield run_loop("UKF", problem, unscented)


def run_particles(problem: Problem) -> Iterator[Run]:
    """The bootstrap filter, its densities written for whole arrays; moments of its particles."""
    import particles
    from particles import distributions, state_space_models

    problem = problem.double()
    a = problem.arrays

    class First(distributions.ProbDist):
        dim = len(a["m"])

        def rvs(self, size: int | None = None) -> np.ndarray:
            before = distributions.MvNormal(loc=a["m"], cov=a["P"]).rvs(size=size)
            return distributions.MvNormal(loc=problem.mean(before), cov=a["Q"]).rvs(size=size)

    class Counts(distributions.ProbDist):
        def __init__(self, z: np.ndarray):
            self.log_rate = z @ a["C"].T + a["b"]

        def logpdf(self, x: np.ndarray) -> np.ndarray:
            return self.log_rate @ x - a["bin_width"] * np.exp(self.log_rate).sum(axis=1)

    class System(state_space_models.StateSpaceModel):
        def PX0(self) -> Any:
            return First()

        def PX(self, t: int, xp: np.ndarray) -> Any:
            return distributions.MvNormal(loc=problem.mean(xp), cov=a["Q"])

        def PY(self, t: int, xp: np.ndarray, x: np.ndarray) -> Any:
            return Counts(x)

    def bootstrap() -> Step:
        np.random.seed(problem.seed)  # noqa: NPY002 -- particles draws from it
        model = state_space_models.Bootstrap(ssm=System(), data=a["ys"])
        filter = particles.SMC(fk=model, N=problem.particles, collect="off")

        def step(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            next(filter)
            mean = filter.W @ filter.X
            away = filter.X - mean
            return mean, (filter.W * away.T) @ away

        return step

    with np.errstate(all="ignore"):
        yield run_loop(f"bootstrap, {problem.particles}", problem, bootstrap)


PACKAGES: dict[str, Callable[[Problem], Iterator[Run]]] = {
    "dynamax": run_dynamax,
    "filterpy": run_filterpy,
    "particles": run_particles,
}


def main(spec_file: str, result_file: str) -> None:
    """Run what the spec asks for, and write the rows."""
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    with np.load(spec["arrays"], allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    truth = arrays.pop("zs")
    problem = Problem(spec["system"], arrays, spec["repeats"], spec["particles"], spec["seed"])
    rows = []
    for package in spec["packages"]:
        for run in PACKAGES[package](problem):
            row = {"package": package, "version": metadata.version(package)}
            row |= {"variant": run.variant, "step_us": 1e6 * run.step_s}
            rows.append(row | scores(run.mean, run.cov, truth))
    result = {"empty_us": 1e6 * empty_call(), "rows": rows}
    Path(result_file).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

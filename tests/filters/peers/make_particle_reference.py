"""Write `particle_reference.json`: what the package `particles` finds on a small nonlinear problem.

Needs `particles`, which asks for an older NumPy than the development tools, so an environment of
its own:

    uv run --no-project --with particles python tests/filters/peers/make_particle_reference.py

The observations are made here and stored with the results: means, variances and log evidence of
the bootstrap filter with systematic resampling, each the mean over independent runs, with the
standard deviation of one run.
"""

import json
from pathlib import Path

import numpy as np
import particles
from particles import distributions as dists
from particles import state_space_models as ssm
from particles.collectors import Moments

T, RUNS, PARTICLES = 30, 40, 10_000
FLOW, NOISE, START, OFFSET = 1.5, 0.2, 0.7, 0.5
"""z' = z + 0.3 FLOW sin(z) + N(0, NOISE^2), z_0 ~ N(0, START^2), y ~ Poisson(exp(z + OFFSET))."""


def drift(z):
    return z + 0.3 * FLOW * np.sin(z)


class Pendulum(ssm.StateSpaceModel):
    """The problem; the first observed state has already moved once."""

    def PX0(self):
        return FirstMove()

    def PX(self, t, xp):
        return dists.Normal(loc=drift(xp), scale=NOISE)

    def PY(self, t, xp, x):
        return dists.Poisson(rate=np.exp(x + OFFSET))


class FirstMove(dists.ProbDist):
    """The state of the first bin: a draw from the prior, moved."""

    dim = 1
    dtype = "float64"

    def rvs(self, size=None):
        start = START * np.random.randn(size)  # noqa: NPY002 (the package's own generator)
        return drift(start) + NOISE * np.random.randn(size)  # noqa: NPY002


def main() -> None:
    rng = np.random.default_rng(0)
    z, ys = START * rng.normal(), []
    for _ in range(T):
        z = drift(z) + NOISE * rng.normal()
        ys.append(int(rng.poisson(np.exp(z + OFFSET))))
    means, variances, evidence = [], [], []
    for run in range(RUNS):
        np.random.seed(run)  # noqa: NPY002
        filter = particles.SMC(
            fk=ssm.Bootstrap(ssm=Pendulum(), data=np.array(ys)),
            N=PARTICLES,
            resampling="systematic",
            ESSrmin=0.5,
            collect=[Moments()],
        )
        filter.run()
        means.append([float(m["mean"]) for m in filter.summaries.moments])
        variances.append([float(m["var"]) for m in filter.summaries.moments])
        evidence.append(filter.summaries.logLts)
    found = {"mean": means, "var": variances, "log_evidence": evidence}
    table = {"ys": ys, "runs": RUNS, "particles": PARTICLES}
    for name, values in found.items():
        table[name] = np.mean(values, axis=0).round(7).tolist()
        table[f"{name}_sd"] = np.std(values, axis=0, ddof=1).round(7).tolist()
    text = json.dumps(table).replace('], "', '],\n"') + "\n"  # one quantity a line
    Path(__file__).with_name("particle_reference.json").write_text(text)


if __name__ == "__main__":
    main()

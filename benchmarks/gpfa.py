"""What GPFA costs on a recording of ordinary size: 82 trials of 40 to 100 bins, 146 neurons.

    python benchmarks/gpfa.py [--quick] [--json FILE]

Checked: every iteration of EM raises the exact log-likelihood, however the lengths differ; and the
states found explain the true ones. Processor time is printed beside time on the clock, since other
programs count in the latter.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from closing import close

from evkf.estimators.gpfa import GPFA

TRIALS, NEURONS, LATENTS = 82, 146, 8
TAUS = (3.0, 5.0, 8.0, 10.0, 12.0, 15.0, 20.0, 30.0)
LEAST_EXPLAINED = 0.95


def recording(rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """States and counts; log rates are linear in states that are smooth in time."""
    loadings = 0.3 * rng.normal(size=(NEURONS, LATENTS))
    states, counts = [], []
    for bins in rng.integers(40, 101, size=TRIALS):
        lag = np.arange(bins)[:, None] - np.arange(bins)
        covs = [np.exp(-0.5 * (lag / tau) ** 2) + 1e-6 * np.eye(bins) for tau in TAUS]
        paths = [np.linalg.cholesky(cov) @ rng.normal(size=bins) for cov in covs]
        states.append(np.stack(paths, axis=1))
        counts.append(rng.poisson(np.exp(0.5 + states[-1] @ loadings.T)))
    return states, counts


def explained(found: list[np.ndarray], true: list[np.ndarray]) -> float:
    """Share of the variance of the true states that is linear in those found."""
    states, truth = np.concatenate(found), np.concatenate(true)
    design = np.column_stack([states, np.ones(len(states))])
    rest = truth - design @ np.linalg.lstsq(design, truth, rcond=None)[0]
    return float(1 - rest.var() / truth.var())


def seconds() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10 iterations instead of 50")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    states, counts = recording(np.random.default_rng(0))
    iterations = 10 if options.quick else 50
    gpfa = GPFA(LATENTS, max_iterations=1, tolerance=0.0)
    begin = seconds()
    gpfa.fit(counts)
    compiled = seconds()
    gpfa.set_params(max_iterations=iterations).fit(counts)
    fitted = seconds()
    # One more than iterations: where EM ends, it is evaluated once again.
    each = (fitted - compiled) / (iterations + 1)
    gains = np.diff(gpfa.log_likelihoods_)
    share = explained(gpfa.transform(counts), states)
    result = {
        "lengths": len({len(trial) for trial in counts}),
        "iterations": len(gains),
        "first_s": (compiled - begin).tolist(),
        "iteration_s": each.tolist(),
        "least_gain": float(gains.min()),
        "log_likelihoods": gpfa.log_likelihoods_[[0, -1]].tolist(),
        "explained": share,
    }
    print(f"{TRIALS} trials of {result['lengths']} lengths, {NEURONS} neurons, {LATENTS} latents")
    print("first fit: {:.1f} s, of processor {:.1f} s".format(*(compiled - begin)))
    print("one iteration: {:.0f} ms, of processor {:.0f} ms".format(*(1e3 * each)))
    print(f"least gain of {len(gains)} iterations: {gains.min():.2g} nats per bin")
    print(f"true states explained: {share:.3f}")
    missed = []
    if len(gains) != iterations or gains.min() <= 0:
        missed.append("an iteration did not raise the log-likelihood")
    if share < LEAST_EXPLAINED:
        missed.append(f"less than {LEAST_EXPLAINED} of the states explained")
    return close(result, missed, options.json)


if __name__ == "__main__":
    sys.exit(main())

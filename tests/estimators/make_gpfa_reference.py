"""Write `gpfa_reference.npz`: what the GPFA of elephant finds in a small simulated recording.

Needs elephant, which is not among the development tools:

    uv run --no-project --with elephant==1.1.1 python tests/estimators/make_gpfa_reference.py

Trials to learn from have 20 bins: elephant learns from stretches of exactly so many. It cuts longer
trials into stretches that overlap at random, as if each were a trial of its own, and leaves out
shorter ones. States and log-likelihoods of trials of other lengths it finds exactly, and those are
compared for the same parameters.
"""

from pathlib import Path

import neo
import numpy as np
import quantities as pq
from elephant.gpfa import GPFA

BIN, NEURONS, LATENTS, LENGTH = 20.0, 16, 3, 20
TAUS = [60.0, 120.0, 300.0]
OTHERS = [9, 31, 20, 14, 31]


def simulate(rng: np.random.Generator, loadings: np.ndarray, bins: int) -> np.ndarray:
    """Counts of one trial, whose log rates are smooth."""
    lag = BIN * (np.arange(bins)[:, None] - np.arange(bins))
    jitter = 1e-6 * np.eye(bins)
    roots = [np.linalg.cholesky(np.exp(-0.5 * (lag / tau) ** 2) + jitter) for tau in TAUS]
    states = np.stack([root @ rng.normal(size=bins) for root in roots], axis=1)
    return rng.poisson(np.exp(1.0 + states @ loadings.T)).astype(np.uint8)


def spike_trains(counts: np.ndarray) -> list[neo.SpikeTrain]:
    """Spikes spread evenly over the bin that they were counted in."""
    trains = []
    for neuron in counts.T:
        times = [
            BIN * (t + (k + 0.5) / num) for t, num in enumerate(neuron.tolist()) for k in range(num)
        ]
        trains.append(neo.SpikeTrain(times, units="ms", t_start=0, t_stop=BIN * len(counts)))
    return trains


def main() -> None:
    rng = np.random.default_rng(0)
    loadings = 0.4 * rng.normal(size=(NEURONS, LATENTS))
    counts = np.stack([simulate(rng, loadings, LENGTH) for _ in range(40)])
    others = [simulate(rng, loadings, bins) for bins in OTHERS]
    gpfa = GPFA(BIN * pq.ms, LATENTS, em_max_iters=2000, em_tol=1e-7, freq_ll=1)
    gpfa.fit([spike_trains(trial) for trial in counts])
    trained = gpfa.transform([spike_trains(trial) for trial in counts])
    trained_log_lik = gpfa.transform_info["log_likelihood"]
    unequal = gpfa.transform([spike_trains(trial) for trial in others])
    params = gpfa.params_estimated
    np.savez_compressed(
        Path(__file__).with_name("gpfa_reference.npz"),
        bin_width=BIN,
        counts=counts,
        states=np.stack([states.T for states in trained]).astype(np.float32),
        log_lik=trained_log_lik,
        iterations=len(gpfa.fit_info["log_likelihoods"]),
        C=params["C"],
        d=params["d"],
        R=np.diag(params["R"]),
        log_tau=-0.5 * np.log(params["gamma"]),
        loadings=gpfa.transform_info["Corth"],
        lengths=OTHERS,
        other_counts=np.concatenate(others),
        other_states=np.concatenate([states.T for states in unequal]),
        other_log_lik=gpfa.transform_info["log_likelihood"],
    )


if __name__ == "__main__":
    main()

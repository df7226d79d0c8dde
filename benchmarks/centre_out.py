"""Centre-out reaches in bins of 100 ms, trials of unequal lengths: velocity decoded with defaults.

Four fifths of the trials train a model whose number of latents is suggested, as `evkf fit` does;
the rest is filtered. R² of hand velocity, decoded from rates or latents, whichever is better, must
reach 0.72 and beat a Wiener filter of 3 bins, and no inferred rate may pass 500 spikes per second.
Prints its figures and exits non-zero when one falls short.

    python benchmarks/centre_out.py FILE [--quick] [--seeds N] [--json FILE]
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from closing import close

from evkf.data import Recording, open_recording
from evkf.estimators.baselines import wiener_features
from evkf.recordings.dimension import suggest_latents
from evkf.recordings.halves import Pair, halve
from evkf.recordings.units import fit_recording, infer

TARGET, HIGHEST, LAGS, MIN_RATE, SEEDS = 0.72, 500.0, 3, 0.5, 3


def one_seed(recording: Recording, velocity: str, seed: int) -> dict:
    """A split of the trials, and what came of it."""
    order = np.random.default_rng(seed).permutation(recording.num_trials)
    end = recording.num_trials * 4 // 5
    parts = halve(recording, order[:end], order[end:], behaviour=velocity, seed=seed)
    latents = suggest_latents(parts.train, seed=seed).latents
    model = fit_recording(parts.train, latents, seed=seed)
    train, test = infer(model, parts.train), infer(model, parts.test)
    wiener = parts.both(lambda counts, lengths: wiener_features(counts, lengths, LAGS))
    row = {
        "seed": seed,
        "latents": latents,
        "rates_r2": parts.behaviour_r2(Pair(train.rates, test.rates)),
        "latents_r2": parts.behaviour_r2(Pair(train.mean, test.mean)),
        "wiener_r2": parts.behaviour_r2(wiener),
        "highest_rate": float(test.rates.max()),
    }
    print(", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    return row


def shortfalls(rows: list[dict]) -> list[str]:
    """Every target that was missed."""
    means = {name: np.mean([row[name] for row in rows]) for name in rows[0]}
    best, wiener = max(means["rates_r2"], means["latents_r2"]), means["wiener_r2"]
    missed = []
    if not best >= max(TARGET, wiener):
        missed.append(f"R² {best:.3f}, target {TARGET}, Wiener filter {wiener:.3f}")
    for row in rows:
        if not row["highest_rate"] <= HIGHEST:
            missed.append(f"seed {row['seed']}: a rate of {row['highest_rate']:.0f} spikes/s")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="counts in bins of 100 ms, with hand velocity")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="splits of the trials")
    parser.add_argument("--quick", action="store_true", help="one split")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    recording = open_recording(options.file, min_rate=MIN_RATE)
    velocity = next(name for name in recording.behaviour if "vel" in name)
    rows = [
        one_seed(recording, velocity, seed) for seed in range(1 if options.quick else options.seeds)
    ]
    return close({"rows": rows}, shortfalls(rows), options.json)


if __name__ == "__main__":
    sys.exit(main())

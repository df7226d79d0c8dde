"""Your NWB file.

This tutorial infers latents from an NWB file with spikes, trials and behaviour, tests them on
held-out trials, and writes them to an NWB file. The shell has the same steps: `evkf fit`, `score`,
`filter`, `plot`.
"""

import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from evkf.analysis.decoding import decode_ridge, r2
from evkf.analysis.spike_metrics import bits_per_spike
from evkf.data import open_recording, read_estimates, recording_to_nwb, write_nwb
from evkf.plotting.recordings import latent_paths, raster
from evkf.plotting.style import ESTIMATE, MUTED, STYLE, TRUTH
from evkf.recordings.simulation import simulate_recording
from evkf.recordings.units import fit_recording, infer

QUICK = "--quick" in sys.argv
TRIALS, BINS, PASSES = (8, 40, 2) if QUICK else (48, 75, None)

# ## Open the file
#
# Replace this simulated file by your own. `align` names the column of the trials table with the
# start of each trial; `behaviour` names the series to read beside the spikes. The same function
# opens Kilosort and Phy folders, npz, HDF5 and CSV files.

folder = Path(tempfile.mkdtemp())
made = simulate_recording(neurons=40, trials=TRIALS, bins=BINS, seed=3)
recording_to_nwb(folder / "reach.nwb", made, seed=3)

recording = open_recording(
    folder / "reach.nwb", align="start_time", bin_width=0.02, behaviour=["hand_vel"]
)
print(f"{recording.num_trials} trials, {recording.num_units} units, {recording.num_bins} bins")

# ## Train on some trials, test on the others
#
# Every third trial is held out. `fit_recording` learns readout, dynamics, noise and initial state
# from the other trials, and stores the units with the model. To choose the number of latents, raise
# it while the bits per spike below increase, or use `evkf.recordings.dimension.suggest_latents`.

left_out = np.arange(recording.num_trials) % 3 == 2
learned = recording.take(np.flatnonzero(~left_out))
judged = recording.take(np.flatnonzero(left_out))
model = fit_recording(learned, latents=2, hidden=8 if QUICK else 32, passes=PASSES)
model.save(folder / "model.safetensors")

# `infer` filters: the estimate of a bin uses that bin and earlier bins. `predicted` uses earlier
# bins only, so it can be tested on the bin: bits per spike, relative to the mean rates of the
# training trials.

found = infer(model, judged)
bits = bits_per_spike(judged.counts, found.predicted, reference=learned.counts.mean(axis=0))
print(f"{bits:.3f} bits per spike, one bin ahead, on held-out trials")

# Ridge regression, fitted to the training trials, decodes behaviour from rates.

seen = infer(model, learned)
trial = np.repeat(np.arange(learned.num_trials), learned.lengths)
velocity = decode_ridge(seen.rates, learned.behaviour["hand_vel"], trial, found.rates)
print(f"hand velocity, R² {r2(judged.behaviour['hand_vel'], velocity):.2f} on held-out trials")

# ## Write the results
#
# A copy of the file gets a processing module with latents, covariances and rates. Any NWB reader
# can show them; `read_estimates` returns them.

everything = infer(model, recording)
write_nwb(folder / "latents.nwb", recording, everything)
print("stored:", read_estimates(folder / "latents.nwb").mean.shape)

# ## Plot the results

conditions = judged.trials["condition"]
first = slice(0, judged.lengths[0])
with plt.rc_context(STYLE):
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.3), layout="constrained",
                                width_ratios=[1.5, 1, 1.1])  # fmt: skip
    order = np.argsort(np.argmax(found.rates[first], axis=0))
    raster(axes[0], judged.counts[first][:, order], found.rates[first][:, order], 0.02)
    latent_paths(axes[1], found.mean, judged.lengths, conditions)
    times = 0.02 * np.arange(judged.lengths[0])
    for i, name in enumerate(("x", "y")):
        level = 600 * (1 - i)  # mm/s between the two
        axes[2].plot(times, level + judged.behaviour["hand_vel"][first, i], color=TRUTH, lw=1)
        axes[2].plot(times, level + velocity[first, i], color=ESTIMATE, lw=1.2)
        axes[2].axhline(level, color=MUTED, lw=0.5, ls=":")
        axes[2].annotate(name, (0, level), (-14, 0), textcoords="offset points", va="center")
    axes[2].set(xlabel="time (s)", yticks=[], title="Hand velocity: true, decoded")
    axes[2].spines["left"].set_visible(False)
    figure.savefig("your_recording.png", dpi=110)

# ![A trial's spikes and rates, latents of single trials by condition, decoded
# velocity](../docs/img/your_recording.png)
#
# ## Next
#
# - Units, trials, blanking, long sessions, other days: [recordings](../docs/recordings.md).
# - Comparison with other methods on the same trials: `evkf score`.
# - A live session with this model: `evkf live --model model.safetensors`.

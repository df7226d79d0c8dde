"""Report of the reaching experiment: the table of means, and what differs from the paper."""

from typing import Any

from evkf.reproduce.reaching import experiment
from evkf.reproduce.reaching.experiment import Reaches

HEADINGS = {
    "rates_r2": "R² from rates",
    "latents_r2": "R² from latents",
    "co_smoothing": "held-out units, bits/spike",
    "one_step": "one step, bits/spike",
    "psth": "R² of PSTHs",
}


def report(means: list[dict[str, Any]], reaches: Reaches, seeds: int, quick: bool) -> str:
    """Return the page of the reaching experiment in Markdown.

    Args:
        means: Means over seeds, from `summarise`.
        reaches: The recording.
        seeds: Number of seeds.
        quick: Whether the run was quick.
    """
    parts = experiment.split(reaches, 0)
    trials = f"{parts.train.num_trials} trials to learn from, {parts.test.num_trials} to judge"
    units = (
        f"{reaches.recording.num_units} units, {parts.hide.sum()} of them held out for co-smoothing"
    )
    lines = [
        "# Reaching",
        "",
        f"{trials}; {units}; bins of {1e3 * reaches.recording.bin_width:g} ms. "
        + (f"Means over {seeds} seeds ± standard errors." if seeds > 1 else "One seed.")
        + (" Quick: too few passes to judge anything by." if quick else ""),
        "",
        f"| method | {' | '.join(HEADINGS.values())} |",
        f"|---|{'---|' * len(HEADINGS)}",
    ]
    for row in means:
        cells = []
        for value in (row[column] for column in HEADINGS):
            if value is None:
                cells.append("—")
            else:
                error = "" if value["error"] is None else f" ± {value['error']:.3f}"
                cells.append(f"{value['mean']:.3f}{error}")
        lines.append(f"| {row['method']} | {' | '.join(cells)} |")
    zero = reaches.event
    if reaches.when:
        zero += f", {1e3 * reaches.when:g} ms into every trial"
    if reaches.subset:
        zero += " as far as the speed of the hand tells, for the subset does not store it"
    num = parts.train.num_trials
    fewer = "as here" if num == experiment.TRIALS else f"here {num} are learned from"
    differences = (
        f"What differs from the paper: it takes {experiment.TRIALS} trials to learn from and as "
        f"many others ({fewer}). It trains on states that GPFA found, which is the row "
        f"“{experiment.ON_GPFA}”; “eVKF” trains dynamics, noise and readout by the bound through "
        f"the filter. It names no size of the model: {experiment.LATENTS} latents and "
        f"{experiment.NETWORK} hidden units are ours, as are bins of "
        f"{1e3 * experiment.BIN_WIDTH:g} ms. It reports R² beside GPFA alone; the other rows and "
        "columns are added. All rows but GPFA are causal; the average is told the condition. While "
        "learning goes on the rates of a moment are those of its model, and the decoder is fitted "
        f"anew every {experiment.BLOCK} trials to what that model makes of the training half; with "
        f"“{experiment.FIXED}” it stays as it was. PSTHs are of the judged trials themselves, with "
        "the noise of few spikes: methods that stay close to single spikes come closest to them."
    )
    lines += ["", differences, ""]
    lines += ["![Latents, reaches and rates](reaching.png)", ""]
    lines += [f"The figure is of the trials that seed 0 judges. In D, time 0 is the {zero}."]
    return "\n".join(lines) + "\n"

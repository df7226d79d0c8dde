"""The demonstration: what it simulates, streams and says."""

import time
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from rich.console import Console

from evkf.recordings import demonstration as demo
from tests.quick import quick_compilation  # noqa: F401


@pytest.fixture(autouse=True, scope="module")
def single_precision() -> Iterator[None]:
    with jax.enable_x64(False):
        yield


@pytest.fixture(scope="module")
def recording() -> demo.DemoRecording:
    return demo.simulate_neurons(num_bins=800, num_neurons=100, seed=1)


@pytest.fixture(scope="module")
def bins() -> list[tuple[int, float]]:
    """When each bin was done."""
    return []


@pytest.fixture(scope="module")
def estimate(recording: demo.DemoRecording, bins: list[tuple[int, float]]) -> demo.DemoEstimates:
    return demo.stream(
        recording.counts, 0, True, lambda t, *_: bins.append((t, time.perf_counter()))
    )


@pytest.fixture(scope="module")
def summary(recording: demo.DemoRecording, estimate: demo.DemoEstimates) -> dict:
    return demo.summarise(recording, estimate)


def test_readout_follows_the_protocol(recording: demo.DemoRecording):
    likelihood = recording.model.likelihood
    np.testing.assert_allclose(np.linalg.norm(likelihood.C, axis=1), 3**-0.5, rtol=1e-6)
    rates = np.exp(likelihood.b)
    assert rates.min() >= 25
    assert rates.max() <= 50
    assert recording.counts.dtype == np.float32
    assert recording.counts.shape == (800, 100)


def test_estimate_is_near_the_truth_and_calibrated(recording: demo.DemoRecording, summary: dict):
    assert demo.sound(summary)
    assert summary["r2"] > 0.95
    assert summary["rmse"] < 0.4
    assert 0.8 < summary["coverage_90"] < 0.97
    assert summary["statuses"] == {"OK": 800}
    assert summary["spikes"] == recording.counts.sum()
    assert f"{summary['rmse']:.3f}" in demo.describe(summary)


def test_dynamics_are_learned(summary: dict, estimate: demo.DemoEstimates):
    assert summary["forecast_rmse"]["end"] < summary["forecast_rmse"]["start"]
    walk = estimate.early.dynamics.noise.var()
    assert np.all(estimate.late.dynamics.noise.var() < walk)


def test_alignment_is_affine(recording: demo.DemoRecording, estimate: demo.DemoEstimates):
    aligned = demo.align(recording, estimate)
    np.testing.assert_allclose(aligned.mean, estimate.mean @ aligned.weight + aligned.offset)
    scale = aligned.weight.T @ estimate.cov[7] @ aligned.weight
    np.testing.assert_allclose(aligned.cov[7], scale, rtol=1e-4)


@pytest.mark.usefixtures("estimate")
def test_real_time_waits_for_every_bin(bins: list[tuple[int, float]]):
    assert [t for t, _ in bins] == list(range(800))
    waiting = 800 - min(demo.WARM_UP, 800 // 4)
    assert bins[-1][1] - bins[0][1] > 0.9 * waiting * demo.BIN_WIDTH


def test_falling_back_is_not_sound(summary: dict):
    assert not demo.sound(summary | {"statuses": {"OK": 1, "FELL_BACK|CAPPED": 1}})
    assert not demo.sound(summary | {"finite": False})


@pytest.mark.parametrize("terminal", [True, False])
def test_ticker_shows_bins_time_and_state(terminal: bool):
    console = Console(force_terminal=terminal, width=120, record=True, quiet=False, file=_Sink())
    with demo.Ticker(console, 10) as ticker:
        for t in range(10):
            ticker(t, 5e-5, np.array([1.0, -2.0]))
    text = console.export_text()
    assert "10/10" in text
    assert "50 µs per bin  state (+1.00, -2.00)" in text


class _Sink:
    """A file that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...


def test_figure_has_a_panel_for_everything(
    recording: demo.DemoRecording, estimate: demo.DemoEstimates
):
    figure = demo.draw(recording, estimate)
    titles = {axes.get_title(loc="left") for axes in figure.axes}
    assert {
        "Latent state",
        "Inferred rates",
        "True dynamics",
        "Learned dynamics",
        "5 bins ahead, at the start",
        "5 bins ahead, at the end",
    } <= titles

"""The demonstration: what it simulates, streams and says."""

import time
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from rich.console import Console

from evkf import demo
from evkf.filters import VariationalKalmanFilter, scan_filter


@pytest.fixture(autouse=True, scope="module")
def single_precision() -> Iterator[None]:
    with jax.enable_x64(False):
        yield


@pytest.fixture(scope="module")
def recording() -> demo.Recording:
    return demo.record(num_bins=200, num_neurons=100, seed=1)


@pytest.fixture(scope="module")
def bins() -> list[tuple[int, float]]:
    """When each bin was done."""
    return []


@pytest.fixture(scope="module")
def estimate(recording: demo.Recording, bins: list[tuple[int, float]]) -> demo.Estimate:
    return demo.stream(recording, True, lambda t, *_: bins.append((t, time.perf_counter())))


def test_readout_follows_the_protocol(recording: demo.Recording):
    likelihood = recording.model.likelihood
    np.testing.assert_allclose(np.linalg.norm(likelihood.C, axis=1), 3**-0.5, rtol=1e-6)
    rates = np.exp(likelihood.b)
    assert rates.min() >= 25
    assert rates.max() <= 50
    assert recording.counts.dtype == np.float32
    assert recording.counts.shape == (200, 100)


def test_stream_is_the_scan(recording: demo.Recording, estimate: demo.Estimate):
    _, trace = scan_filter(VariationalKalmanFilter(), recording.model, recording.counts)
    np.testing.assert_allclose(estimate.mean, trace.belief.mean, atol=1e-5)
    np.testing.assert_allclose(estimate.cov, trace.belief.cov, atol=1e-6)
    assert estimate.seconds.shape == (200,)


def test_estimate_is_near_the_truth_and_calibrated(
    recording: demo.Recording, estimate: demo.Estimate
):
    summary = demo.summarise(recording, estimate)
    assert demo.sound(summary)
    assert summary["rmse"] < 0.3
    assert 0.8 < summary["coverage_90"] < 0.97
    assert summary["statuses"] == {"OK": 200}
    assert summary["spikes"] == recording.counts.sum()
    assert f"{summary['rmse']:.3f}" in demo.describe(summary)


@pytest.mark.usefixtures("estimate")
def test_real_time_waits_for_every_bin(bins: list[tuple[int, float]]):
    assert [t for t, _ in bins] == list(range(200))
    assert bins[-1][1] - bins[0][1] > 0.9 * 200 * demo.BIN_WIDTH


def test_falling_back_is_not_sound(recording: demo.Recording, estimate: demo.Estimate):
    summary = demo.summarise(recording, estimate)
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


def test_figure_has_a_panel_for_everything(recording: demo.Recording, estimate: demo.Estimate):
    figure = demo.draw(recording, estimate)
    titles = {axes.get_title(loc="left") for axes in figure.axes}
    assert {"Latent state", "Inferred rates", "Phase portrait", "Rates of two neurons"} <= titles

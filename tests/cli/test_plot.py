"""What `evkf plot` says of a model."""

import jax
import numpy as np
import pytest
from scipy.stats import kstest

from evkf.analysis.decoding import integrate
from evkf.analysis.estimates import Estimates
from evkf.analysis.spike_metrics import dispersion, dispersion_hint
from evkf.cli.plot import KINDS, _check_plane, _raster, _reaches, judge
from evkf.data import Recording, Series
from evkf.dynamics import Linear
from evkf.errors import InputError
from evkf.filters import VariationalKalmanFilter
from evkf.likelihoods import Bernoulli, NegativeBinomial, Poisson
from evkf.model import Model, simulate
from evkf.plotting.colours import by_condition
from evkf.recordings.halves import held_out
from evkf.recordings.units import UnitModel, infer
from tests.quick import quick_compilation  # noqa: F401

N, BINS, WIDTH = 20, 3000, 0.02
ROTATION = 0.95 * np.array([[np.cos(0.2), -np.sin(0.2)], [np.sin(0.2), np.cos(0.2)]])
C = np.random.default_rng(0).normal(size=(N, 2))
MODELS = {
    "poisson": Poisson(C, np.full(N, np.log(50.0)), WIDTH),
    "softplus": Poisson(20 * C, np.full(N, 50.0), WIDTH, link="softplus"),
    "negative binomial": NegativeBinomial(C, np.full(N, np.log(50.0)), 3.0, WIDTH),
    "bernoulli": Bernoulli(C, np.full(N, np.log(50.0)), WIDTH),
}


def recorded(true: str, name: str) -> tuple[UnitModel, Recording, Estimates]:
    """A recording of one model, and what another makes of it."""
    behind, used = (
        Model(Linear(ROTATION, noise=np.full(2, 0.1)), MODELS[each]) for each in (true, name)
    )
    counts = np.asarray(simulate(behind, jax.random.key(1), BINS)[1]).astype(int)
    model = UnitModel(used, VariationalKalmanFilter(), tuple(map(str, range(N))), WIDTH)
    recording = Recording(counts, WIDTH)
    return model, recording, infer(model, recording, variance=True)


@pytest.mark.parametrize("name", MODELS)
def test_the_model_behind_the_data_is_right(name):
    model, recording, found = recorded(name, name)
    spread, values = judge(model, recording, found, 0)
    np.testing.assert_allclose(np.median(spread.value), 1, atol=0.05)
    assert np.all(np.abs(spread.value - 1) < 5 * spread.error)
    assert dispersion_hint(spread, KINDS[type(MODELS[name])]).endswith("it fits")
    assert kstest(values.ravel(), "uniform").statistic < 0.02
    if name == "poisson":  # what the mean alone would say
        assert "negative binomial" in dispersion_hint(dispersion(recording.counts, found.predicted))


def test_counts_that_are_not_poisson_are_found():
    model, recording, found = recorded("negative binomial", "poisson")
    spread, values = judge(model, recording, found, 0)
    assert "try the negative binomial" in dispersion_hint(spread)
    assert kstest(values.ravel(), "uniform").statistic > 0.02


@pytest.mark.parametrize(
    ("about", "title", "unit"),
    [
        (Series("cm", position=True), "Decoded positions", "cm"),
        (Series("cm/s", position=True), "Reaches from decoded velocity", "cm"),
        (Series("mm per second"), "Reaches from decoded velocity", "mm"),
        (Series("V"), "Reaches from decoded velocity", "a.u."),
        (None, "Reaches from decoded velocity", "a.u."),
    ],
)
def test_a_position_is_not_summed_up_once_more(about, title, unit):
    rng, labels = np.random.default_rng(0), np.array(["up", "down"] * 4)
    hand = rng.normal(size=(80, 2)).cumsum(axis=0)
    said = {} if about is None else {"hand": about}
    recording = Recording(
        np.ones((80, 3), int), WIDTH, (10,) * 8, behaviour={"hand": hand}, series=said
    )
    found = Estimates(*[hand @ rng.normal(size=(2, 2))] * 5)
    colours = by_condition(labels, 8)
    ax = _reaches(recording, found, labels, colours, "hand")
    named, share = ax.get_title(loc="left").split("\n")
    assert (named, ax.get_xlabel()) == (title, f"x ({unit})")
    assert share == "R² 1.00, 4 trials the decoder has not seen"
    ax.figure.draw_without_rendering()
    assert ax._left_title.get_window_extent().x1 <= ax.figure.bbox.x1
    trial = np.flatnonzero(held_out(8, 2))[0]
    truth, decoded = (line.get_xydata() for line in ax.lines[:2])
    rows = hand[10 * trial : 10 * trial + 10]
    want = rows if "positions" in title else integrate(rows, WIDTH, (10,), np.zeros((1, 2)))
    np.testing.assert_allclose(truth, want)
    np.testing.assert_allclose(decoded - decoded[0], want - want[0], atol=0.1)
    assert ax.lines[1].get_color() == colours[labels[trial].item()]


@pytest.mark.parametrize(
    ("hand", "said"),
    [
        (np.ones((20, 3)), r"shape \(20, 3\)"),
        (np.full((20, 2), np.nan), "or NaN"),
        (np.column_stack([np.arange(20.0), np.zeros(20)]), "never changes"),
    ],
)
def test_what_is_no_path_in_a_plane_is_refused(hand, said):
    recording = Recording(np.ones((20, 3), int), WIDTH, behaviour={"hand": hand})
    with pytest.raises(InputError, match=said):
        _check_plane(recording, "processing/behavior/hand")


def test_a_silent_unit_is_not_counted():
    model, recording, found = recorded("poisson", "poisson")
    counts = recording.counts.copy()
    counts[:, 3] = 0
    spread, _ = judge(model, Recording(counts, WIDTH), found, 0)
    assert np.flatnonzero(np.isnan(spread.value)).tolist() == [3]
    assert dispersion_hint(spread).startswith("19 of 19 units")


@pytest.mark.parametrize(
    ("align", "start", "label"),
    [(None, 7.0, "time (s)"), ("go", -0.2, "time from go (s)")],
)
def test_the_raster_is_in_the_time_of_the_rates(align, start, label):
    recording = Recording(np.ones((20, 3), int), WIDTH, (10, 10), np.array([7.0, 9.0]))
    found = Estimates(*[np.ones((20, 3))] * 5)
    ax = _raster(recording, found, align, -0.2)
    assert ax.get_xlabel() == label
    assert ax.get_xlim() == pytest.approx((start, start + 10 * WIDTH))

"""Figures of recordings show the numbers they are given, in axes they are given."""

import numpy as np
import pytest
from matplotlib.colors import same_color

from evkf.analysis.decoding import integrate
from evkf.analysis.spike_metrics import Dispersion, dispersion, pit, smooth_trials
from evkf.errors import InputError
from evkf.plotting import recordings as figures

RNG = np.random.default_rng(0)
LENGTHS, CONDITIONS, WIDTH = (10, 12, 8), ["up", "down", "up"], 0.02
COUNTS = RNG.poisson(1.0, (30, 4))
PATH = RNG.normal(size=(30, 2)).cumsum(axis=0)


def drawn(ax):
    """Axes that can be rendered, with labels."""
    ax.figure.canvas.draw()
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert ax.get_title(loc="left")
    assert not ax.spines["top"].get_visible()
    return ax


def test_raster_has_a_mark_for_every_spike():
    ax = drawn(figures.raster(figures.new_axes(), COUNTS, COUNTS / WIDTH, WIDTH, start=5.0))
    marks = np.array(ax.collections[0].get_segments())
    assert len(marks) == COUNTS.sum()
    bins = np.floor((marks[:, 0, 0] - 5) / WIDTH + 1e-9).astype(int)
    units = np.round(marks[:, :, 1].mean(axis=1)).astype(int)
    found = np.zeros_like(COUNTS)
    np.add.at(found, (bins, units), 1)
    np.testing.assert_array_equal(found, COUNTS)
    np.testing.assert_allclose(ax.images[0].get_array().T, COUNTS / WIDTH)
    assert (ax.get_xlabel(), len(ax.lines)) == ("time (s)", 0)
    drawn(figures.raster(figures.new_axes(), 0 * COUNTS, 0.0 * COUNTS, WIDTH))
    ax = drawn(figures.raster(figures.new_axes(), COUNTS, COUNTS / WIDTH, WIDTH, -0.2, event="go"))
    assert ax.get_xlabel() == "time from go (s)"
    assert ax.lines[0].get_xdata() == [0, 0]
    assert ax.get_xlim() == pytest.approx((-0.2, 0.4))
    ax = drawn(figures.raster(figures.new_axes(), COUNTS, COUNTS / WIDTH, WIDTH, 0.5, event="go"))
    assert len(ax.lines) == 0  # the event is before the window
    assert ax.get_xlim() == pytest.approx((0.5, 1.1))
    ids = [f"u{n}" for n in range(COUNTS.shape[1])]
    ax = drawn(figures.raster(figures.new_axes(), COUNTS, COUNTS / WIDTH, WIDTH, units=ids))
    assert {label.get_text() for label in ax.get_yticklabels()} - {""} <= set(ids)
    assert ax.images[0].norm.vmax < COUNTS.max() / WIDTH  # the busiest goes beyond the scale
    ax = figures.raster(figures.new_axes(), COUNTS[:, :1], COUNTS[:, :1] / WIDTH, WIDTH)
    assert ax.get_yticks().tolist() == [0]
    some = np.flatnonzero(np.arange(100) % 7)  # without 0, 7, ...
    wide = np.ones((3, len(some)), int)
    ax = drawn(figures.raster(figures.new_axes(), wide, wide / WIDTH, WIDTH, units=some))
    labels = [int(label.get_text()) for label in ax.get_yticklabels()]
    assert all(label % 5 == 0 for label in labels)
    assert some[ax.get_yticks().astype(int)].tolist() == labels
    with pytest.raises(InputError, match="units of shape"):
        figures.raster(figures.new_axes(), COUNTS, COUNTS / WIDTH, WIDTH, units=ids[1:])


def test_paths_are_coloured_by_condition():
    ax = drawn(figures.latent_paths(figures.new_axes(), PATH, LENGTHS, CONDITIONS))
    first, second, third = ax.lines[::2]
    np.testing.assert_allclose(second.get_xydata(), PATH[10:22])
    assert same_color(first.get_color(), third.get_color())
    assert not same_color(first.get_color(), second.get_color())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["down", "up"]
    some = figures.by_condition(CONDITIONS[1:], 2)
    assert some == figures.by_condition(CONDITIONS, 3)  # whichever trial comes first


def test_which_of_many_latents_are_drawn_is_said():
    states = np.column_stack([PATH, PATH, PATH])
    for part, says in ((states, "($z_{1}$, $z_{2}$ of 6)"), (PATH, "start")):
        ax = figures.latent_paths(figures.new_axes(), part, LENGTHS, CONDITIONS)
        assert ax.get_title(loc="left").endswith(says)


@pytest.mark.parametrize("num", [7, 9, 10, 30])
def test_every_condition_has_a_colour_of_its_own(num):
    ax = figures.latent_paths(figures.new_axes(), RNG.normal(size=(num, 2)), [1] * num, range(num))
    assert len({str(line.get_color()) for line in ax.lines}) == num
    assert (ax.get_legend() is None) == (num > figures.NAMED)


def test_reaches_are_summed_up_from_where_they_began():
    speed = RNG.normal(size=(30, 2))
    args = PATH, speed, LENGTHS, CONDITIONS, WIDTH
    ax = drawn(figures.reaches(figures.new_axes(), *args))
    want = integrate(speed, WIDTH, LENGTHS, PATH[[0, 10, 22]])
    np.testing.assert_allclose(ax.lines[2].get_xydata(), PATH[10:22])
    np.testing.assert_allclose(ax.lines[3].get_xydata(), want[10:22])
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["down", "up", "decoded", "true path"]
    for true, decoded in zip(ax.lines[:6:2], ax.lines[1:6:2], strict=True):
        assert same_color(true.get_color(), decoded.get_color())
        assert (true.is_dashed(), decoded.is_dashed()) == (True, False)
    alone = figures.new_axes()
    found = figures.legend(alone, figures.by_condition(CONDITIONS, 3), "target").get_legend()
    assert (found.get_title().get_text(), found.get_frame_on()) == ("target", False)
    assert "(cm)" in figures.reaches(figures.new_axes(), *args, unit="cm").get_xlabel()


def test_hands_are_coloured_by_direction():
    ways = np.array([[-1.0, -0.1], [0, 1], [1, 0], [1, 0]])
    path = np.stack([0 * ways, ways], axis=1).reshape(-1, 2)
    labels = ["left", "up", "right", "right"]
    ax = drawn(figures.hand_paths(figures.new_axes(), path, (2,) * 4, labels, "cm"))
    left, up, right, again = (line.get_color() for line in ax.lines[::2])
    assert same_color(right, again)
    assert len({left, up, right}) == 3
    colours = figures.by_direction(path, (2,) * 4, labels)
    assert list(colours) == ["left", "right", "up"]
    given = dict.fromkeys(colours, "#ff0000")
    for ax in (
        figures.hand_paths(figures.new_axes(), path, (2,) * 4, labels, colours=given),
        figures.latent_paths(figures.new_axes(), path, (2,) * 4, labels, colours=given),
    ):
        assert {line.get_color() for line in ax.lines} == {"#ff0000"}
        assert ax.get_legend() is None


def test_rates_are_aligned_to_the_event():
    """A step at the event of every trial is a step at zero of the average."""
    events = np.array([4, 6, 3]) * WIDTH
    rates = np.concatenate(
        [np.arange(n) >= round(e / WIDTH) for n, e in zip(LENGTHS, events, strict=True)]
    )
    args = 5.0 * rates, LENGTHS, ["a"] * 3, WIDTH, figures.Event(events, "onset")
    ax = drawn(figures.aligned_rates(figures.new_axes(), *args))
    times, mean = ax.lines[-1].get_data()
    there = np.isfinite(mean)
    np.testing.assert_allclose(mean[there], np.where(times[there] > 0, 5.0, 0.0))
    # two of three trials reach from 4 bins before to 6 after
    assert (times[there].min(), times[there].max()) == pytest.approx((-3.5 * WIDTH, 5.5 * WIDTH))
    assert ax.get_xlabel() == "time from onset (s)"
    assert ax.get_legend() is None
    with pytest.raises(InputError, match="events"):
        figures.aligned_rates(figures.new_axes(), *args[:4], figures.Event(events[:2]))


def test_averages_of_spikes_are_drawn_beside_those_of_rates():
    events, labels = np.full(3, 2 * WIDTH), ["a", "b", "a"]
    spikes = np.where(np.arange(30) == 22, np.nan, COUNTS[:, 0] / WIDTH)
    args = np.ones(30), LENGTHS, labels, WIDTH, figures.Event(events)
    ax = drawn(figures.aligned_rates(figures.new_axes(), *args, spikes=spikes))
    first, second = (line for line in ax.lines[1:] if line.is_dashed())
    times, mean = first.get_data()
    assert times[0] == pytest.approx(-1.5 * WIDTH)
    known = np.isfinite(spikes)[:, None]
    smooth = smooth_trials(spikes[:, None], LENGTHS, 0.04 / WIDTH, known)[:, 0]
    smooth[22] = np.nan  # not filled in
    want = np.nanmean([smooth[:8], smooth[22:]], axis=0)
    np.testing.assert_allclose(mean[:8], want)
    assert np.isfinite(second.get_ydata()).sum() == 12
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["a", "b", "inferred", "spikes (SD 40 ms)"]
    with pytest.raises(InputError, match="spikes of shape"):
        figures.aligned_rates(figures.new_axes(), *args, spikes=spikes[1:])


def test_calibration_shows_shares_and_a_band():
    values = pit(RNG.poisson(2.0, (5000, 1)), np.full((5000, 1), 2.0))
    ax = drawn(figures.calibration(figures.new_axes(), values, bins=10))
    heights = np.array([bar.get_height() for bar in ax.patches])
    np.testing.assert_allclose(heights, np.histogram(values, 10, (0, 1))[0] / 500)
    band = ax.collections[0].get_paths()[0].get_extents()
    assert 0.9 < band.y0 < 1 < band.y1 < 1.1
    assert np.mean((heights >= band.y0) & (heights <= band.y1)) >= 0.8
    figures.calibration(figures.new_axes(), np.where(values > 0.5, np.nan, values))
    with pytest.raises(InputError, match="pit"):
        figures.calibration(figures.new_axes(), np.array([1.2]))


def test_dispersion_marks_units_and_says_what_to_do():
    rates = np.array([2.0, 8.0, 20.0])
    found = Dispersion(np.array([1.0, 2.0, np.nan]), np.array([0.05, 0.05, np.nan]))
    ax = drawn(figures.dispersion_check(figures.new_axes(), found, rates))
    assert "negative binomial" in ax.texts[0].get_text()
    box = ax.texts[0].get_window_extent()
    assert ax.bbox.y1 < box.y0  # no error bar runs through the text
    assert box.y1 < ax._left_title.get_window_extent().y0
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    expected = ("no more than expected", "more than expected")
    assert texts == [f"{name}, ± standard error" for name in expected]
    calm, over = (container.lines[0].get_xydata() for container in ax.containers)
    np.testing.assert_allclose(calm, [[2, 1]])
    np.testing.assert_allclose(over, [[8, 2]])
    fits = dispersion(RNG.poisson(1.0, (2000, 3)), np.ones((2000, 3)))
    ax = drawn(figures.dispersion_check(figures.new_axes(), fits, rates))
    assert "it fits" in ax.texts[0].get_text()
    assert len(ax.get_legend().get_texts()) == 1
    ids = ["one", "two", "three"]
    ax = figures.dispersion_check(figures.new_axes(), found, rates, units=ids)
    assert "(two)" in ax.texts[0].get_text()
    with pytest.raises(InputError, match="rates"):
        figures.dispersion_check(figures.new_axes(), fits, rates[:2])


def test_conditions_that_do_not_fit():
    with pytest.raises(InputError, match="conditions"):
        figures.latent_paths(figures.new_axes(), PATH, LENGTHS, ["up"])


def test_decoded_paths_of_another_length():
    with pytest.raises(InputError, match=r"decoded positions of shape \(31, 2\) .* \(30, 2\)"):
        figures.decoded_paths(
            figures.new_axes(), PATH, np.vstack([PATH, PATH[:1]]), LENGTHS, CONDITIONS
        )

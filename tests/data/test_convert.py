"""Objects of pynapple and Neo in and out."""

import sys

import neo
import numpy as np
import pynapple as nap
import pytest
import quantities as pq

from evkf.data import Recording
from evkf.data.convert import from_neo, from_pynapple, to_neo, to_pynapple
from evkf.errors import InputError
from evkf.numerics.binning import bin_spikes


def spikes():
    rng = np.random.default_rng(0)
    return [np.sort(rng.uniform(0, 10, num)).round(6) for num in (300, 500)]


def group(**changes):
    given = {"time_support": nap.IntervalSet(0, 10), "metadata": {"area": ["M1", "PMd"]}}
    return nap.TsGroup(dict(zip((3, 8), map(nap.Ts, spikes()), strict=True)), **given | changes)


def test_epochs_of_pynapple_are_trials():
    epochs = nap.IntervalSet([1.0, 4.0], [2.0, 5.57], metadata={"cue": ["left", "right"]})
    recording = from_pynapple(group(), 0.1, epochs)
    assert (recording.lengths, recording.start_times.tolist()) == ((10, 15), [1.0, 4.0])
    np.testing.assert_array_equal(recording.counts[:10], bin_spikes(spikes(), 1.0, 0.1, 10))
    np.testing.assert_array_equal(recording.counts[10:], bin_spikes(spikes(), 4.0, 0.1, 15))
    assert recording.units["id"].tolist() == [3, 8]
    assert recording.units["area"].tolist() == ["M1", "PMd"]
    assert recording.units.keys() == {"id", "area"}
    assert recording.trials["cue"].tolist() == ["left", "right"]
    assert recording.trials["cue"].dtype.kind == "U"
    assert recording.masks.all()


def test_without_epochs_all_of_the_time_support():
    recording = from_pynapple(group(), 0.1)
    assert (recording.lengths, recording.counts.sum()) == ((100,), 800)


@pytest.mark.filterwarnings("ignore:Some starts and ends are equal")
def test_epochs_that_touch_lose_no_bin():
    epochs = nap.IntervalSet([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    assert epochs.end[0] < 1.0
    for support in (epochs, nap.IntervalSet(0, 10)):
        recording = from_pynapple(group(time_support=support), 0.1, epochs)
        assert (recording.lengths, recording.masks.all()) == ((10, 10, 10), True)


def test_bins_outside_the_time_support_were_not_observed():
    support = nap.IntervalSet([0.0, 6.0], [5.05, 10.0])
    recording = from_pynapple(group(time_support=support), 0.1, nap.IntervalSet(4.5, 6.5))
    hidden = np.flatnonzero(~recording.masks.any(axis=1))
    assert hidden.tolist() == list(range(5, 15))


def test_behaviour_of_pynapple():
    times = np.arange(10_000) / 1000
    values = np.stack([times, -times], axis=1)
    behaviour = {"hand": nap.TsdFrame(t=times, d=values), "x": nap.Tsd(t=times, d=times)}
    recording = from_pynapple(group(), 0.1, nap.IntervalSet(2, 3), behaviour)
    np.testing.assert_allclose(recording.behaviour["x"], recording.times + 0.0495)
    np.testing.assert_allclose(recording.behaviour["hand"][:, 1], -recording.times - 0.0495)
    behaviour["x"].values[7] = np.nan
    with pytest.raises(InputError, match=r"1 of 10000 samples.*behaviour\['x'\]"):
        from_pynapple(group(), 0.1, nap.IntervalSet(2, 3), behaviour)


def test_what_pynapple_cannot_have_meant():
    with pytest.raises(InputError, match=r"a list .*pass a TsGroup"):
        from_pynapple([], 0.1)
    with pytest.raises(InputError, match=r"epochs.*pass a IntervalSet"):
        from_pynapple(group(), 0.1, [(0, 1)])
    short = nap.Tsd(t=np.arange(0, 1, 0.01), d=np.zeros(100))
    with pytest.raises(InputError, match=r"a bin at 2 s for samples.*behaviour\['x'\]"):
        from_pynapple(group(), 0.1, nap.IntervalSet(2, 3), {"x": short})
    with pytest.raises(InputError, match=r"a dict .*behaviour\['x'\]"):
        from_pynapple(group(), 0.1, behaviour={"x": {}})
    with pytest.raises(InputError, match=r"holds no bin.*epochs 1"):
        from_pynapple(group(), 0.1, nap.IntervalSet([0, 2], [1, 2.05]))
    with pytest.raises(InputError, match="seconds above zero"):
        from_pynapple(group(), 0.0)


@pytest.mark.parametrize(
    ("shape", "kind"), [((9,), nap.Tsd), ((9, 2), nap.TsdFrame), ((9, 2, 2), nap.TsdTensor)]
)
@pytest.mark.parametrize("starts", [(0.0, 0.08), (1.0, 0.5)])
def test_values_to_pynapple(shape, kind, starts):
    recording = Recording(np.zeros((9, 1), int), 0.02, (4, 5), np.array(starts))
    values = np.random.default_rng(0).normal(size=shape)
    series = to_pynapple(recording, values)
    assert isinstance(series, kind)
    assert len(series) == 9
    order = np.argsort(recording.times)
    np.testing.assert_allclose(series.times(), recording.times[order] + 0.01, atol=1e-9)
    np.testing.assert_array_equal(series.values, values[order])
    spans = series.time_support.values
    np.testing.assert_allclose(spans[:, 0], np.sort(starts), atol=1e-9)
    np.testing.assert_allclose(
        spans[:, 1] - spans[:, 0], np.sort([0.08, 0.1])[np.argsort(starts)], atol=2e-6
    )


def test_values_that_pynapple_cannot_hold():
    recording = Recording(np.zeros((9, 1), int), 0.02, (4, 5), np.array([0.0, 0.06]))
    with pytest.raises(InputError, match="overlap"):
        to_pynapple(recording, np.zeros(9))
    for work in (to_pynapple, to_neo):
        with pytest.raises(InputError, match="one row for each of the 9 bins"):
            work(recording, np.zeros(8))


def block(names=("u1", "u2")):
    made = neo.Block()
    for number, (begin, end) in enumerate([(0.0, 5.0), (5.0, 9.99)]):
        segment = neo.Segment(cue=f"c{number}", odd=[1, 2])
        for name, times in zip(names, spikes(), strict=True):
            inside = times[(times >= begin) & (times < end)] * 1000
            bounds = {"t_start": begin * pq.s, "t_stop": end * pq.s}
            segment.spiketrains.append(
                neo.SpikeTrain(inside, units="ms", **bounds, name=name, depth=3)
            )
        made.segments.append(segment)
    return made


def test_segments_of_neo_are_trials():
    recording = from_neo(block(), 0.1)
    assert (recording.lengths, recording.start_times.tolist()) == ((50, 49), [0.0, 5.0])
    np.testing.assert_array_equal(recording.counts, bin_spikes(spikes(), 0.0, 0.1, 99))
    assert recording.units["id"].tolist() == ["u1", "u2"]
    assert recording.units["depth"].tolist() == [3, 3]
    assert {name: x.tolist() for name, x in recording.trials.items()} == {"cue": ["c0", "c1"]}
    one = from_neo(block().segments[1], 0.1)
    np.testing.assert_array_equal(one.counts, recording.counts[50:])


@pytest.mark.parametrize("names", [("u", "u"), (None, None), ("u", None)])
def test_units_of_neo_without_names_are_numbered(names):
    assert from_neo(block(names), 0.1).units["id"].tolist() == [0, 1]


def test_what_neo_cannot_have_meant():
    made = block()
    made.segments[1].spiketrains[1].name = "u3"
    with pytest.raises(InputError, match=r"\['u1', 'u3'\], after \['u1', 'u2'\].*segment 1"):
        from_neo(made, 0.1)
    with pytest.raises(InputError, match=r"no spike trains.*segment 0"):
        from_neo(neo.Segment(), 0.1)
    with pytest.raises(InputError, match="no segments"):
        from_neo(neo.Block(), 0.1)
    with pytest.raises(InputError, match=r"a list.*Block or Segment"):
        from_neo([], 0.1)
    with pytest.raises(InputError, match=r"holds no bin.*segment 0"):
        from_neo(block(), 6.0)
    unsorted = neo.Segment()
    unsorted.spiketrains.append(neo.SpikeTrain([3, 1], units="s", t_stop=5, name="u9"))
    with pytest.raises(InputError, match="segment 0: spike times of unit u9, index 1"):
        from_neo(unsorted, 0.1)


def test_values_to_neo():
    recording = Recording(np.zeros((9, 1), int), 0.02, (4, 5), np.array([1.0, 7.0]))
    values = np.random.default_rng(0).normal(size=(9, 2))
    signals = to_neo(recording, values, "mm/s")
    np.testing.assert_array_equal(np.concatenate([x.magnitude for x in signals]), values)
    times = np.concatenate([x.times.rescale("s").magnitude for x in signals])
    np.testing.assert_allclose(times, recording.times + 0.01)
    assert {str(x.dimensionality) for x in signals} == {"mm/s"}
    assert signals[0].sampling_period == 0.02 * pq.s
    assert to_neo(recording, values[:, 0])[0].units == pq.dimensionless
    with pytest.raises(InputError, match="units 'blorps'"):
        to_neo(recording, values, "blorps")
    with pytest.raises(InputError, match="channels"):
        to_neo(recording, np.zeros((9, 2, 2)))


def test_without_the_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynapple", None)
    monkeypatch.setitem(sys.modules, "neo", None)
    recording = Recording(np.zeros((2, 1), int), 0.1)
    for name, works in {
        "pynapple": (lambda: from_pynapple(None, 0.1), lambda: to_pynapple(recording, np.ones(2))),
        "neo": (lambda: from_neo(None, 0.1), lambda: to_neo(recording, np.ones(2))),
    }.items():
        for work in works:
            with pytest.raises(InputError, match=rf"needs {name} \(in .*pip install {name}"):
                work()

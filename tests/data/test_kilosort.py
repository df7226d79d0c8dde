"""Kilosort and Phy folders."""

import numpy as np
import pytest

from evkf.data import kilosort
from evkf.data.kilosort import read_kilosort
from evkf.errors import InputError

RATE = 30_000
CLUSTERS = np.array([2, 4, 7, 9])


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    samples = np.sort(rng.integers(0, 10 * RATE, 5000)).astype(np.uint64)
    samples[100:200] = np.arange(100) * 150 + samples[100] // 150 * 150 + 150  # on edges of 5 ms
    samples.sort()
    np.save(tmp_path / "spike_times.npy", samples[:, None])
    np.save(tmp_path / "spike_clusters.npy", rng.choice(CLUSTERS, 5000).astype(np.int32))
    labels = "cluster_id\tgroup\n2\tgood\n4\tmua\n7\tgood\n9\tnoise\n11\tgood\n"
    (tmp_path / "cluster_group.tsv").write_text(labels)
    params = "dat_path = ['a.bin']\nn_channels_dat = 384\nsample_rate = 30000.\nhp = False\n"
    (tmp_path / "params.py").write_text(params)
    return tmp_path


def spikes(folder):
    samples = np.load(folder / "spike_times.npy").ravel().astype(int)
    return samples, np.load(folder / "spike_clusters.npy")


@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_counts_are_those_of_samples(folder, monkeypatch, chunk):
    monkeypatch.setattr(kilosort, "CHUNK", chunk)
    recording = read_kilosort(folder, 0.005)
    samples, clusters = spikes(folder)
    num = samples[-1] // 150 + 1
    assert (recording.num_bins, recording.units["id"].tolist()) == (num, [2, 7])
    for column, unit in enumerate([2, 7]):
        expected = np.bincount(samples[clusters == unit] // 150, minlength=num)
        np.testing.assert_array_equal(recording.counts[:, column], expected)
    assert recording.units["group"].tolist() == ["good", "good"]
    assert recording.source == str(folder)


def test_a_part_of_the_session(folder):
    whole = read_kilosort(folder, 0.005, groups=["good", "mua"])
    part = read_kilosort(folder, 0.005, groups=["good", "mua"], start=1.0, stop=2.0)
    assert part.start_times.tolist() == [1.0]
    np.testing.assert_array_equal(part.counts, whole.counts[200:400])
    assert part.units["id"].tolist() == [2, 4, 7]
    assert read_kilosort(folder, 0.3, start=1.0, stop=2.0).num_bins == 3


def test_more_of_the_units(folder):
    info = "cluster_id\tdepth\tgroup\tsh\n2\t10.5\tnoise\ta\n7\t\tnoise\tb\n"
    (folder / "cluster_info.tsv").write_text(info)
    (folder / "cluster_KSLabel.tsv").write_text("cluster_id\tKSLabel\n2\tgood\n7\tmua\n4\tgood\n")
    units = read_kilosort(folder, 0.1).units
    assert units["id"].tolist() == [2, 7]
    np.testing.assert_array_equal(units["depth"], [10.5, np.nan])
    assert [units["sh"].tolist(), units["KSLabel"].tolist()] == [["a", "b"], ["good", "mua"]]
    (folder / "cluster_group.tsv").unlink()
    assert read_kilosort(folder, 0.1, groups="noise").units["id"].tolist() == [2, 7]
    (folder / "cluster_info.tsv").unlink()
    assert read_kilosort(folder, 0.1).units["id"].tolist() == [2, 4]


def test_parameters_are_not_run(folder):
    text = f"open({str(folder / 'ran')!r}, 'w')\nimport os\nsample_rate = 30000\n"
    (folder / "params.py").write_text(text)
    read_kilosort(folder, 0.1)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "no sample_rate"),
        ("sample_rate = int(3e4)", r"sample_rate = 'int\(30000.0\)'"),
        ("sample_rate = -1", "sample_rate = -1"),
        ("sample_rate = True", "sample_rate = True"),
        ("sample_rate =", "cannot be read"),
    ],
)
def test_parameters_without_a_rate(folder, text, says):
    (folder / "params.py").write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        read_kilosort(folder, 0.1)
    assert "params.py" in str(caught.value)


@pytest.mark.parametrize("name", ["params.py", "spike_times.npy", "spike_clusters.npy"])
def test_missing_files_are_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"no such file.*{name}"):
        read_kilosort(folder, 0.1)


def test_missing_labels_and_folders(folder):
    (folder / "cluster_group.tsv").unlink()
    with pytest.raises(InputError, match=r"no labels in cluster_group\.tsv"):
        read_kilosort(folder, 0.1)
    with pytest.raises(InputError, match="no such folder"):
        read_kilosort(folder / "none", 0.1)


def test_spikes_out_of_order_are_named(folder, monkeypatch):
    samples, _ = spikes(folder)
    samples[[4000, 4007]] = samples[[4007, 4000]]
    assert samples[4000] > samples[4001]
    np.save(folder / "spike_times.npy", samples.astype(np.uint64))
    for chunk in (1, 4001, 1 << 20):
        monkeypatch.setattr(kilosort, "CHUNK", chunk)
        with pytest.raises(InputError, match=r"spike_times\.npy, index 4001.*sort"):
            read_kilosort(folder, 0.1)


def test_files_that_do_not_belong_together(folder):
    np.save(folder / "spike_clusters.npy", np.zeros(4999, int))
    with pytest.raises(InputError, match="5000 spike times for 4999 spike clusters"):
        read_kilosort(folder, 0.1)


@pytest.mark.parametrize(
    "array", [np.zeros(5000), np.zeros((2500, 2), int), np.array(3), np.full(9, None)]
)
def test_files_of_something_else(folder, array):
    np.save(folder / "spike_times.npy", array)
    with pytest.raises(InputError, match=r"spike_times\.npy"):
        read_kilosort(folder, 0.1)


def test_damaged_files(folder):
    path = folder / "spike_times.npy"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"cannot be read.*is it complete"):
        read_kilosort(folder, 0.1)
    np.save(path, np.zeros(0, int))
    np.save(folder / "spike_clusters.npy", np.zeros(0, int))
    with pytest.raises(InputError, match="no spikes"):
        read_kilosort(folder, 0.1)


def test_groups_that_are_not_there(folder):
    with pytest.raises(InputError, match="no unit in the groups best, only in good, mua, noise"):
        read_kilosort(folder, 0.1, groups=["best"])


def test_labels_that_cannot_be_read(folder):
    (folder / "cluster_group.tsv").write_text("cluster_id\tgroup\nx\tgood\n")
    with pytest.raises(InputError, match=r"'x' as the id.*cluster_group\.tsv: line 2"):
        read_kilosort(folder, 0.1)
    (folder / "cluster_group.tsv").write_text("a,b\n")
    with pytest.raises(InputError, match="no column cluster_id"):
        read_kilosort(folder, 0.1)


@pytest.mark.parametrize(("start", "stop"), [(2.0, 1.0), (1.0, 1.05), (11.0, None)])
def test_no_bins(folder, start, stop):
    with pytest.raises(InputError, match="no whole bin"):
        read_kilosort(folder, 0.1, start=start, stop=stop)

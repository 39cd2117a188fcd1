"""Windows of recordings: from memory, from files, from mne, a few at a time."""

import threading
import time
import tracemalloc

import numpy as np
import pytest
import zarr

from polyad import AugmentedCP
from polyad.augmented.signals import STFT, Recordings
from polyad.data.batches import open_source
from polyad.exceptions import InvalidInputError, InvalidTypeError

LONG = [
    np.random.default_rng(k).standard_normal((3, n_times)).astype(np.float32)
    for k, n_times in enumerate((100, 57, 9, 230))
]


def slow_windows(recordings, window, step):
    return np.stack(
        [
            own[:, start : start + window]
            for own in recordings
            for start in range(0, own.shape[1] - window + 1, step)
        ]
    )


@pytest.mark.parametrize(("window", "step"), [(10, None), (20, 7), (30, 40)])
def test_windows_are_cut_and_read_by_slices(window, step):
    found = Recordings(LONG, window, step)
    expected = slow_windows(LONG, window, step or window)
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(found), expected)
    np.testing.assert_array_equal(found[3:9], expected[3:9])
    np.testing.assert_array_equal(found[np.array([7, 0, 1])], expected[[7, 0, 1]])
    np.testing.assert_array_equal(found[-1], expected[-1])
    for (number, start), own in zip(found.origins, expected, strict=True):
        np.testing.assert_array_equal(LONG[number][:, start : start + window], own)


def test_files_of_any_kind_are_read(tmp_path):
    paths = [tmp_path / f"{k}.npy" for k in range(len(LONG))]
    for path, own in zip(paths, LONG, strict=True):
        np.save(path, own)
    stored = zarr.create_array(
        tmp_path / "own.zarr", shape=LONG[0].shape, dtype="f4", chunks=(3, 50)
    )
    stored[:] = LONG[0]
    given = [*paths, str(tmp_path / "own.zarr"), stored]
    expected = slow_windows([*LONG, LONG[0], LONG[0]], 8, 5)
    np.testing.assert_array_equal(np.asarray(Recordings(given, 8, 5)), expected)
    halves = Recordings(paths, 8, 5, open_file=lambda path: np.load(path)[:2] / 2)
    np.testing.assert_array_equal(np.asarray(halves), slow_windows(LONG, 8, 5)[:, :2] / 2)


def test_batches_of_a_source_hold_each_window_once(tmp_path):
    windows = Recordings(LONG, 10, 5)
    source = open_source(windows, 16, allow_nan=False)
    assert source.n_samples == len(windows)
    expected = np.asarray(windows)
    seen = []
    for batch in source.sweep(np.random.default_rng(0)):
        np.testing.assert_array_equal(batch.given.data, expected[batch.positions])
        seen.extend(batch.positions.tolist())
    assert sorted(seen) == list(range(len(windows)))
    assert seen != sorted(seen)


def test_a_sweep_over_files_takes_the_memory_of_a_few_batches(tmp_path):
    paths = [tmp_path / f"{k}.npy" for k in range(6)]
    for k, path in enumerate(paths):
        made = np.lib.format.open_memmap(path, "w+", np.float32, (8, 200_000))
        made[:] = k
    tracemalloc.start()
    windows = Recordings(paths, 500)  # 38 MB in all, batches of 1 MB
    source = open_source(windows, 64, allow_nan=False)
    total = sum(float(batch.given.data[:, 0, 0].sum()) for batch in source.sweep())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == sum(range(6)) * 400
    assert peak < 8e6


class Watched(Recordings):
    """Windows that remember by which threads they were read."""

    def __getitem__(self, key):
        self.readers.append(threading.current_thread())
        return super().__getitem__(key)


def test_a_thread_reads_one_block_ahead_and_no_more():
    windows = Watched(LONG, 10)
    windows.readers = []
    sweep = open_source(windows, 8, allow_nan=False).sweep()
    for n_used in (1, 2):
        next(sweep)
        wanted = 1 + n_used + 1  # the head, what was used and the next
        deadline = time.monotonic() + 30.0
        while len(windows.readers) < wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(windows.readers) == wanted
    assert threading.main_thread() not in windows.readers[1:]
    sweep.close()


def test_an_error_of_a_block_says_which_it_is():
    broken = [own.copy() for own in LONG]
    broken[3][0, 100] = np.nan
    source = open_source(Recordings(broken, 10), 8, allow_nan=False)
    with pytest.raises(InvalidInputError, match="block 3, samples"):
        list(source.sweep())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Recordings([]), "empty"),
        (lambda: Recordings(LONG[0]), "window"),
        (lambda: Recordings(LONG, 0), "window=0"),
        (lambda: Recordings(LONG, 1000), "as long as"),
        (lambda: Recordings([LONG[0], LONG[1][:2]], 10), "Recording 1 has 2 channels"),
        (lambda: Recordings(["nowhere.npy"], 10), "no file"),
        (lambda: Recordings([3], 10), "int"),
        (lambda: Recordings(np.zeros(9), 10), "shape"),
    ],
)
def test_what_has_no_windows_is_refused(make, words):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=words):
        make()


def test_recordings_of_mne_bring_the_names_of_their_channels(tmp_path):
    mne = pytest.importorskip("mne", reason="recordings of mne need the extra 'signal'")
    info = mne.create_info(["Fz", "Cz", "Oz"], 100.0, "eeg")
    data = np.random.default_rng(0).standard_normal((3, 1000)) * 1e-5
    raw = mne.io.RawArray(data, info, verbose="error")
    raw.save(tmp_path / "own_raw.fif", verbose="error")
    expected = slow_windows([data], 200, 100)
    for given in (raw, [tmp_path / "own_raw.fif"]):
        windows = Recordings(given, 200, 100)
        assert windows.dtype == np.float32
        np.testing.assert_allclose(np.asarray(windows), expected, rtol=1e-5)
        assert list(windows[:2].labels[1]) == ["Fz", "Cz", "Oz"]
    events = np.array([[0, 0, 1], [300, 0, 1], [600, 0, 1]])
    options = {"tmin": 0.0, "tmax": 1.0, "baseline": None, "verbose": "error"}
    epochs = mne.Epochs(raw, events, preload=False, **options)
    source = open_source(epochs, 2, allow_nan=False)
    assert source.n_samples == 3
    assert list(source.head.labels[1]) == ["Fz", "Cz", "Oz"]
    for batch in source.sweep():
        for own, position in zip(batch.given.data, batch.positions, strict=True):
            start = events[position, 0]
            np.testing.assert_allclose(own, data[:, start : start + 101], rtol=1e-5)
    model = AugmentedCP(1, preprocess=STFT(n_fft=16), max_iter=1, random_state=0)
    names = model.fit(epochs).factor_table("channel").index.tolist()
    assert names == ["Fz re", "Cz re", "Oz re", "Fz im", "Cz im", "Oz im"]
    with pytest.raises(InvalidInputError, match="window"):
        open_source(raw, 2, allow_nan=False)

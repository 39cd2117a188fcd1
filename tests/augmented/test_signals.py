"""Features and augmentations of signals, against slow twins that take one channel at a time."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from scipy.signal import butter, get_window, lfilter
from scipy.spatial.transform import Rotation as ScipyRotation
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from polyad import AugmentedCP
from polyad.augmented.signals import (
    STFT,
    BandPass,
    ChannelDropout,
    Compose,
    Jitter,
    OneOf,
    Rotation,
    Scaling,
    TimeShift,
)
from polyad.augmented.signals.steps import restored_step, stored_step
from polyad.core.threads import thread_limit
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.fitting.identity import identify

BANDS = ((1e-6, 20.0), (5.0, 24.5))
PUBLISHED = OneOf((Jitter(0.002), BandPass(50.0, BANDS), Rotation(together=False)))
AUGMENTATIONS = [
    Jitter(0.2),
    Jitter(0.2, "low", 1.0),
    BandPass(50.0, BANDS),
    Rotation(),
    Rotation(together=False),
    TimeShift(0.3),
    Scaling(0.3),
    Scaling(0.3, per_channel=True),
    ChannelDropout(0.4),
    PUBLISHED,
    Compose((Scaling(0.1), Jitter(0.1))),
]


def made(n=7, channels=6, n_times=128, dtype=np.float64):
    return np.random.default_rng(3).standard_normal((n, channels, n_times)).astype(dtype)


def name_of(step):
    return type(step).__name__


@pytest.mark.parametrize("augment", AUGMENTATIONS, ids=name_of)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_augmentations_change_torch_tensors_by_the_same_numbers(augment, dtype):
    signals = made(dtype=dtype)
    before = signals.copy()
    found = augment(signals, np.random.default_rng(5))
    np.testing.assert_array_equal(signals, before)
    assert found.dtype == dtype
    assert found.shape == signals.shape
    assert not np.array_equal(found, signals)
    again = augment(signals, np.random.default_rng(5))
    np.testing.assert_array_equal(found, again)
    other = augment(torch.from_numpy(signals), np.random.default_rng(5))
    assert isinstance(other, torch.Tensor)
    np.testing.assert_allclose(other.numpy(), found, rtol=0, atol=1e-5)


def slow_jitter(signals, rng, degree, modes, probability, relative_to="window"):
    """Add noise to one channel after another, as the published program does."""
    n, channels, n_times = signals.shape
    drawn = [modes[k] for k in rng.integers(len(modes), size=n * channels)]
    is_changed = rng.random(n * channels) < probability
    out = signals.copy().reshape(-1, n_times)
    ranges = np.ptp(signals, axis=2)
    if relative_to == "batch":
        ranges = np.tile(signals.std(axis=(0, 2)), (n, 1))
    ranges = ranges.reshape(-1)
    fast = [k for k, mode in enumerate(drawn) if is_changed[k] and mode in ("high", "both")]
    slow = [k for k, mode in enumerate(drawn) if is_changed[k] and mode in ("low", "both")]
    noise = 2 * rng.random((len(fast), n_times), dtype=np.float32) - 1
    for row, k in zip(noise, fast, strict=True):
        out[k] += degree * ranges[k] * row
    lengths = rng.integers(n_times // 20, n_times // 2, size=len(slow))
    knots = 2 * rng.random((len(slow), n_times // 2), dtype=np.float32) - 1
    for length, row, k in zip(lengths, knots, slow, strict=True):
        places = np.linspace(0, 1, n_times), np.linspace(0, 1, length)
        out[k] += degree * ranges[k] * np.interp(*places, row[:length])
    return out.reshape(signals.shape)


@pytest.mark.parametrize("relative_to", ["window", "batch"])
@pytest.mark.parametrize("modes", [("high", "low", "both", "none"), ("low",), ("none",)])
def test_jitter_is_that_of_one_channel_after_another(modes, relative_to):
    signals = made()
    signals[3] *= 0.01
    found = Jitter(0.05, modes, 0.7, relative_to)(signals, np.random.default_rng(2))
    twin = slow_jitter(signals, np.random.default_rng(2), 0.05, modes, 0.7, relative_to)
    np.testing.assert_allclose(found, twin, atol=2e-6)


def test_jitter_of_short_signals_and_of_none():
    assert np.isfinite(Jitter(0.1, "low", 1.0)(made(n_times=3), np.random.default_rng(0))).all()
    signals = made()
    np.testing.assert_array_equal(Jitter(probability=0)(signals, np.random.default_rng(0)), signals)


@pytest.mark.parametrize("n_times", [128, 700])
def test_band_pass_is_the_filter_of_one_of_the_bands(n_times):
    signals = made(n_times=n_times)
    found = BandPass(50.0, BANDS)(signals, np.random.default_rng(2))
    drawn = np.random.default_rng(2).integers(2, size=signals.shape[:2])
    for place in np.ndindex(signals.shape[:2]):
        low, high = BANDS[drawn[place]]
        coefficients = butter(1, [low / 25, high / 25], btype="band")
        np.testing.assert_allclose(found[place], lfilter(*coefficients, signals[place]), atol=1e-9)


def test_rotation_turns_triples_by_the_same_matrix():
    signals = made()
    found = Rotation(0.5)(signals, np.random.default_rng(2))
    rng = np.random.default_rng(2)
    axes, angles = rng.uniform(-1, 1, (7, 1, 3)), rng.uniform(-0.5, 0.5, (7, 1))
    for n in range(7):
        axis = axes[n, 0] / np.linalg.norm(axes[n, 0])
        matrix = ScipyRotation.from_rotvec(angles[n, 0] * axis).as_matrix()
        for start in (0, 3):
            expected = matrix @ signals[n, start : start + 3]
            np.testing.assert_allclose(found[n, start : start + 3], expected, atol=1e-12)


def test_rotation_of_chosen_channels_leaves_the_others():
    signals = made(channels=5)
    found = Rotation(triples=((4, 0, 2),))(signals, np.random.default_rng(2))
    np.testing.assert_array_equal(found[:, [1, 3]], signals[:, [1, 3]])
    lengths = [np.linalg.norm(part[:, [0, 2, 4]], axis=1) for part in (found, signals)]
    np.testing.assert_allclose(*lengths)


def test_shifts_scales_and_dropouts():
    signals = made(n=200)
    shifted = TimeShift(0.3)(signals, np.random.default_rng(2))
    shifts = np.random.default_rng(2).integers(-38, 39, size=200)
    for row, shift, found in zip(signals, shifts, shifted, strict=True):
        np.testing.assert_array_equal(found, np.roll(row, shift, axis=-1))
    ratio = Scaling(0.2)(signals, np.random.default_rng(2)) / signals
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :1, :1], ratio.shape))
    assert 0.15 < np.log(ratio[:, 0, 0]).std() < 0.25
    silent = ~ChannelDropout(0.9)(signals, np.random.default_rng(2)).any(axis=2)
    assert not silent.all(axis=1).any()
    assert 0.65 < silent.mean() < 0.85  # 0.9 * 5/6


def test_one_of_draws_one_step_for_each_sample():
    def times(factor):
        return lambda signals, _: factor * signals

    signals = made(n=300)
    ratio = OneOf((times(2), times(3), times(5)))(signals, np.random.default_rng(0)) / signals
    values, counts = np.unique(np.round(ratio[:, 0, 0]), return_counts=True)
    assert list(values) == [2, 3, 5]
    assert counts.min() > 60
    assert np.ptp(ratio.reshape(300, -1), axis=1).max() < 1e-9
    both = Compose((times(2), times(3)))(signals, np.random.default_rng(0))
    np.testing.assert_allclose(both, 6 * signals)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize(("n_fft", "hop"), [(64, 2), (31, 7)])
@pytest.mark.parametrize(("dtype", "precision"), [(np.float64, 1e-9), (np.float32, 2e-3)])
def test_log_parts_are_those_of_torch_one_channel_at_a_time(
    n_fft, hop, normalized, dtype, precision
):
    signals = made(n=3)
    found = STFT(n_fft, hop, normalized=normalized)(signals.astype(dtype))
    assert found.dtype == dtype
    for n, c in np.ndindex(signals.shape[:2]):
        spectrum = torch.stft(
            torch.from_numpy(signals[n, c]),
            n_fft,
            hop,
            window=torch.ones(n_fft, dtype=torch.float64),
            center=False,
            normalized=normalized,
            return_complex=True,
        )
        for k, part in enumerate((spectrum.real, spectrum.imag)):
            twin = np.log(np.abs(part.numpy()) + 1e-3)
            np.testing.assert_allclose(found[n, 6 * k + c], twin, atol=precision)


def log_features(signals, n_fft, hop, window, features):
    """Return the logarithms as they are defined, and how much a part of a spectrum is rounded."""
    frames = np.lib.stride_tricks.sliding_window_view(signals, n_fft, axis=2)[:, :, ::hop]
    frames = np.swapaxes(frames * get_window(window, n_fft), 2, 3)
    spectra, floor = np.fft.rfft(frames, axis=2), 1e-3
    size = (1 + np.log2(n_fft)) * np.linalg.norm(frames, axis=2, keepdims=True)
    if features == "log_power":
        return np.log(np.abs(spectra) ** 2 + floor**2), np.abs(2 * spectra) * size
    both = np.concatenate([np.abs(spectra.real), np.abs(spectra.imag)], axis=1)
    return np.log(both + floor), np.concatenate([size, size], axis=1)


# Powers of four and others; frames that share transforms, that do not, with gaps, more than one
# pass of them, and fewer than the kernel is for.
FRAMES = [(4, 1, 40), (8, 16, 150), (16, 3, 90), (32, 2, 64), (64, 2, 128), (128, 16, 300)]
MANY_FRAMES = [(16, 1, 600), (16, 2, 615), (8, 1, 12), (24, 3, 90)]


@pytest.mark.parametrize("features", ["log_parts", "log_power"])
@pytest.mark.parametrize("window", ["boxcar", "hann"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n_fft", "hop", "n_times"), [*FRAMES, *MANY_FRAMES])
def test_logarithms_are_those_of_spectra_but_for_rounding(
    n_fft, hop, n_times, dtype, window, features
):
    signals = 10 * made(n=2, channels=7, n_times=n_times).astype(dtype)
    true, size = log_features(signals.astype(np.float64), n_fft, hop, window, features)
    given = signals.copy()
    found = STFT(n_fft, hop, features, window)(given)
    np.testing.assert_array_equal(given, signals)
    assert found.shape == true.shape
    assert found.dtype == dtype
    # The error of a part, and that of its logarithm.
    epsilon = np.finfo(dtype).eps
    bound = size * np.exp(-true) + 2 * np.maximum(1, np.abs(true))
    assert np.max(np.abs(found - true) / bound) < epsilon


@pytest.mark.parametrize("window", ["boxcar", "hann"])
def test_features_of_a_sample_depend_on_it_alone(window):
    """Not on its batch, its place in memory or the threads, in any digit."""
    signals, transform = made(n=40, channels=5, dtype=np.float32), STFT(32, 4, window=window)
    found = transform(signals)
    alone = [transform(signals[k : k + 1]) for k in range(40)]
    np.testing.assert_array_equal(np.concatenate(alone), found)
    elsewhere = np.asfortranarray(signals)
    elsewhere.flags.writeable = False
    with thread_limit(2):
        np.testing.assert_array_equal(transform(elsewhere), found)
    assert transform(signals[:0]).shape == (0, *found.shape[1:])


def test_silence_is_the_floor_and_what_is_not_finite_stays_in_its_frames():
    signals = np.zeros((1, 3, 128), np.float32)
    signals[0, 1] = 7.3
    signals[0, 2, 40] = np.nan
    found = STFT(32, 4)(signals)
    assert np.all(found[0, [0, 3]] == np.log(np.float32(1e-3)))
    # A constant is at the frequency zero alone.
    assert np.all(found[0, [1, 4], 1:] == np.log(np.float32(1e-3)))
    meets = (np.arange(25) * 4 <= 40) & (np.arange(25) * 4 + 32 > 40)
    assert np.isnan(found[0, [2, 5]][..., meets]).any(axis=0).all()
    assert np.all(found[0, [2, 5]][..., ~meets] == np.log(np.float32(1e-3)))
    signals[0, 0, 0] = np.inf
    assert not np.isfinite(STFT(32, 4)(signals)[0, 0, :, 0]).any()


@pytest.mark.parametrize("batch_size", [8, None])
def test_memory_that_batches_share_changes_no_number(batch_size):
    """Transforms write to memory of the fit; those of a function of one's own are new arrays."""
    signals, transform = made(n=21, dtype=np.float32), STFT(n_fft=32, hop=8)
    kinds = (transform, partial(transform))
    options = {"augment": Scaling(), "max_iter": 3, "tol": 0, "random_state": 0}
    models = [AugmentedCP(2, preprocess=kind, batch_size=batch_size, **options) for kind in kinds]
    with pytest.warns(ConvergenceWarning):
        found = [model.fit(signals) for model in models]
    for name in ("weights_", "mean_", "metric_"):
        np.testing.assert_array_equal(*(getattr(model, name) for model in found))
    np.testing.assert_array_equal(*(model.transform(signals) for model in found))
    place = np.empty_like(transform(signals))
    assert np.shares_memory(transform(signals, out=place), place)
    np.testing.assert_array_equal(place, transform(signals))


@pytest.mark.parametrize("features", ["log_parts", "magnitude_phase", "log_power"])
@pytest.mark.parametrize("window", ["boxcar", "hann"])
def test_features_of_torch_are_those_of_numpy(features, window):
    signals = made()
    transform = STFT(16, 4, features, window=window)
    found = transform(signals)
    for n_jobs in (1, 2):
        with thread_limit(n_jobs):
            np.testing.assert_array_equal(transform(signals), found)
    np.testing.assert_allclose(transform(torch.from_numpy(signals)).numpy(), found, atol=1e-9)
    assert transform(signals.astype(np.float32)).dtype == np.float32
    modes, labels = transform.labels(6, 128)
    assert modes == ("channel", "frequency", "time")
    assert tuple(len(own) for own in labels) == found.shape[1:]


def test_power_and_magnitude_are_of_the_same_spectrum():
    signals = made()
    magnitude, phase = np.split(STFT(16, 4, "magnitude_phase")(signals), 2, axis=1)
    parts = STFT(16, 4)(signals)
    np.testing.assert_allclose(np.log(np.abs(magnitude * np.cos(phase)) + 1e-3), parts[:, :6])
    power = STFT(16, 4, "log_power")(signals)
    np.testing.assert_allclose(power, np.log(magnitude**2 + 1e-6), atol=1e-9)


def test_a_tone_is_found_at_its_frequency():
    times = np.arange(256) / 128.0
    transform = STFT(features="log_power", sampling_rate=128.0)
    found = transform(np.sin(2 * np.pi * 20 * times)[None, None])
    _, (channels, frequencies, frames) = transform.labels(["Oz"], 256)
    assert list(channels) == ["Oz power"]
    assert frequencies[np.argmax(found[0, 0, :, 0])] == 20.0
    assert frames[0] == 0.5  # the middle of a frame of a second


def test_silent_channels_and_counts_are_fine():
    transform = STFT(8, 4)
    assert np.isfinite(transform(np.zeros((2, 1, 16)))).all()
    assert transform(np.ones((2, 1, 16), dtype=np.int16)).dtype == np.float64


@pytest.mark.parametrize("step", [*AUGMENTATIONS, STFT(16, features="log_power")], ids=name_of)
def test_steps_are_cloned_stored_and_identified(step):
    for twin in (clone(step), copy.deepcopy(step), restored_step(stored_step(step))):
        assert twin is not step
        assert identify(twin, "step") == identify(step, "step")
    assert stored_step(restored_step(stored_step(step))) == stored_step(step)


def test_a_function_of_ones_own_is_stored_by_its_name():
    stored = stored_step(OneOf((Scaling(), lambda signals, _: signals)))
    assert stored["parameters"]["steps"][1]["callable"].endswith("<lambda>")
    with pytest.raises(InvalidInputError, match=r"<lambda>.*set_params"):
        restored_step(stored).steps[1](made(), None)
    with pytest.raises(InvalidInputError, match="does not know"):
        restored_step({"step": "os.system", "parameters": {}})


def test_parameters_are_set_and_checked():
    step = Jitter().set_params(degree=0.3)
    assert step.get_params()["degree"] == 0.3
    with pytest.raises(InvalidInputError, match="no parameter 'size'"):
        step.set_params(size=3)
    with pytest.raises(InvalidInputError, match="degree"):
        step.set_params(degree=-1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Jitter(modes=("fast",)),
        lambda: Jitter(probability=2),
        lambda: Jitter(relative_to="range"),
        lambda: BandPass(50.0, ((5.0, 30.0),)),
        lambda: BandPass(50.0, ((0.0, 10.0),)),
        lambda: Rotation(triples=((0, 1, 1),))(made(), np.random.default_rng()),
        lambda: Rotation(triples=((0, 1, 9),))(made(), np.random.default_rng()),
        lambda: Rotation()(made(channels=4), np.random.default_rng()),
        lambda: OneOf(()),
        lambda: STFT(0),
        lambda: STFT(features="power"),
        lambda: STFT(256)(made()),
        lambda: STFT()(made()[0]),
        lambda: STFT()(made().astype(complex)),
    ],
)
def test_what_has_no_meaning_is_refused(wrong):
    with pytest.raises((InvalidInputError, InvalidTypeError)):
        wrong()

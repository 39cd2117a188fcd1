"""The EEGLAB tutorial recording: from the raw recording to features and a picture.

    POLYAD_DATA=/path/to/data python -m experiments.atd.eeg

One person looks at squares for four minutes: 32 channels, 128 Hz. The continuous recording is cut
into windows of a second that overlap by half, described by AugmentedCP without labels, and drawn.
What the features are worth is tested on the windows after a square against those far from one,
which the fit does not know; training and test windows are of different minutes.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from experiments.data import data_file
from experiments.runs import command, environment, write_section
from polyad import AugmentedCP
from polyad.augmented.signals import STFT, ChannelDropout, Compose, Jitter, Recordings, Scaling

HERE = Path(__file__).parent
RATE, WINDOW, STEP = 128.0, 128, 64
COMPONENTS, PARTS = 8, 6


def read_recording() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the recording in volts (channels, times), the names and the times of the squares."""
    stored = np.load(data_file("eeg/eeglab_tutorial.npz"))
    kinds = stored["event_type"].astype(str)
    squares = stored["event_latency"][kinds == "square"] - 1
    return stored["data_uv"] * 1e-6, stored["channels"].astype(str), squares


def as_recording(data: np.ndarray, names: np.ndarray) -> Any:
    """Return the recording as mne has it, if it is installed, otherwise the array."""
    try:
        import mne
    except ImportError:
        return data
    info = mne.create_info([name.strip() for name in names], RATE, "eeg")
    return mne.io.RawArray(data, info, verbose="error")


def make_model(seed: int = 0) -> AugmentedCP:
    """Return the model: loose contacts, amplifiers and noise do not change what a window means."""
    twins = Compose((Scaling(0.2, per_channel=True), Jitter(0.1), ChannelDropout(0.05)))
    return AugmentedCP(
        COMPONENTS,
        augment=twins,
        preprocess=STFT(n_fft=64, hop=16, features="log_power", window="hann", sampling_rate=RATE),
        random_state=seed,
    )


def labels_of(windows: Recordings, squares: np.ndarray) -> np.ndarray:
    """Return 1 for windows that begin just after a square, 0 for those far from one, else -1."""
    starts = windows.origins[:, 1][:, None]
    since = starts - squares[None, :]
    after = ((since >= 0) & (since < RATE / 2)).any(axis=1)
    near = ((since > -WINDOW - RATE / 4) & (since < RATE)).any(axis=1)
    return np.where(after, 1, np.where(near, -1, 0))


def areas(features: np.ndarray, classes: np.ndarray) -> list[float]:
    """Return the area under the ROC curve for each part of the recording, learned from others."""
    found = []
    for test in np.array_split(np.arange(len(classes)), PARTS):
        is_test = np.isin(np.arange(len(classes)), test)
        kept = classes >= 0
        # Windows at the border overlap with test windows.
        border = np.isin(np.arange(len(classes)), [test[0] - 1, test[-1] + 1])
        train, tested = kept & ~is_test & ~border, kept & is_test
        if len(np.unique(classes[tested])) < 2:
            continue
        model = LogisticRegression(max_iter=500, class_weight="balanced")
        model.fit(features[train], classes[train])
        found.append(
            float(roc_auc_score(classes[tested], model.decision_function(features[tested])))
        )
    return found


def draw(model: AugmentedCP, names: np.ndarray, squares: np.ndarray, path: Path) -> None:
    """Draw each component: its channels, frequencies and times, and its course."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    course, channels, frequencies, frames = model.factors_
    _, (_, hertz, seconds) = model.preprocess.labels(len(names), WINDOW)
    minutes = np.arange(len(course)) * STEP / RATE / 60
    shown = 4
    figure, axes = plt.subplots(
        shown, 4, figsize=(15, 9), gridspec_kw={"width_ratios": [2.2, 1, 0.8, 3]}
    )
    for k, row in enumerate(axes):
        row[0].bar(np.arange(len(names)), channels[:, k], color="C0")
        row[0].set_xticks(np.arange(len(names)), names, rotation=90, fontsize=6)
        row[1].plot(hertz, frequencies[:, k], "C1")
        row[2].plot(seconds, frames[:, k], "C2", marker="o")
        row[3].plot(minutes, course[:, k], "C3", lw=0.8)
        row[3].plot(squares / RATE / 60, np.full(len(squares), course[:, k].min()), "k|", ms=5)
        row[0].set_ylabel(f"component {k + 1}")
    for axis, title in zip(
        axes[0],
        ("channels", "frequency (Hz)", "time in window (s)", "course (min), squares as ticks"),
        strict=True,
    ):
        axis.set_title(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Fit, test, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=12)
    options = parser.parse_args(arguments)
    data, names, squares = read_recording()
    windows = Recordings(as_recording(data, names), WINDOW, STEP)
    classes = labels_of(windows, squares)
    by_seed = []
    for seed in range(options.seeds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = make_model(seed).fit(windows)
        by_seed.append(np.mean(areas(np.asarray(model.transform(windows)), classes)))
        if seed == 0:
            draw(model, np.char.strip(names), squares, HERE / "eeg.png")
    body = (
        f"`{command()}`; {environment()}.\n\n{len(windows)} windows of {WINDOW} times and "
        f"{len(names)} channels, {COMPONENTS} features. Windows after a square "
        f"({int((classes == 1).sum())}) against windows far from one "
        f"({int((classes == 0).sum())}): "
        f"area under the ROC curve over {PARTS} parts of the recording, mean over {options.seeds} "
        f"starts: {np.mean(by_seed):.3f} (from {min(by_seed):.3f} to {max(by_seed):.3f}).\n\n"
        "![components](eeg.png)\n"
    )
    write_section(HERE / "RESULTS.md", "EEG: the tutorial recording", body)
    print(body)


if __name__ == "__main__":
    main()

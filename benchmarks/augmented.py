"""A sweep of AugmentedCP over signals: polyad against a pipeline as the published program has it.

The pipeline in torch is written for this comparison after reading the program of ATD (github
ycq091044/ATD): one sample and one channel at a time is augmented, each channel has a transform of
its own, the updates are einsums and a loop over rows. All do the same on the same signals: twins,
short-time Fourier features of samples and twins, rows and factors of each batch, and what is
watched for the end: our objective follows from the products with the components, the published
error takes a product more. Other rows are for scale: the matrix products of the updates alone, by
our kernel and by BLAS, and a copy of the memory that the tensors take.
Imports are inside: each library runs in a process of its own.

``python -m benchmarks.augmented`` prints the parts of a sweep, what bounds them (the
roofline), and how they grow with the samples.
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[int], object]

#: Samples, channels and times of the activities (HAR), and of the tensors made of them.
SAMPLES, CHANNELS, TIMES = 7352, 9, 128
TENSOR = (18, 33, 33)
BATCH, RANK, RATE = 128, 32, 50.0
BANDS = ((1e-6, 20.0), (5.0, 24.5))
#: Samples of the case without twins and transforms, whose tensors are held in memory.
FEWER = 2048


def title(n_samples: int) -> str:
    return f"augmented: a sweep over signals, {n_samples} x {CHANNELS} x {TIMES}, R={RANK}"


def signals(n_samples: int) -> np.ndarray:
    """Return smooth random signals."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((n_samples, CHANNELS, TIMES), dtype=np.float32)
    return np.cumsum(noise, axis=2, dtype=np.float32) / 10


def tensors(n_samples: int) -> np.ndarray:
    """Return the features of random signals, and those of their twins, as one array."""
    own = signals(n_samples)
    preprocess, twins = _steps()
    both = preprocess(own), preprocess(twins(own, np.random.default_rng(0)))
    return np.stack(both)


def _steps() -> tuple[Any, Any]:
    from polyad.augmented.signals import STFT, BandPass, Jitter, OneOf, Rotation

    twins = OneOf((Jitter(0.002), BandPass(RATE, BANDS), Rotation(together=False)))
    return STFT(n_fft=64, hop=2, normalized=True), twins


def _model(rank: int, n_iter: int, **parameters: Any) -> Any:
    from polyad import AugmentedCP

    options = {"batch_size": BATCH, "random_state": 0, "n_jobs": 2}
    return AugmentedCP(rank, max_iter=n_iter, tol=0, **options, **parameters)


def polyad_run(data: np.ndarray, rank: int) -> Run:
    preprocess, twins = _steps()

    def run(n_iter: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _model(rank, n_iter, augment=twins, preprocess=preprocess).fit(data)

    return run


def polyad_steps_run(data: np.ndarray, rank: int) -> Run:
    """Return sweeps over tensors and twins that are there."""

    def run(n_iter: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # In the order of the samples, as the others.
            _model(rank, n_iter, augment=data[1], shuffle=False).fit(data[0])

    return run


def reference_run(data: np.ndarray, rank: int) -> Run:
    import torch

    torch.set_num_threads(2)

    def run(n_iter: int) -> None:
        rng = np.random.default_rng(0)
        factors = [torch.randn(n, rank) for n in TENSOR]
        for _ in range(n_iter):
            order = rng.permutation(len(data))
            for start in range(0, len(data), BATCH):
                own = data[order[start : start + BATCH]]
                changed = np.stack([_changed(sample.copy(), rng) for sample in own])
                both = [_transformed(torch.from_numpy(x)) for x in (own, changed)]
                factors = _updated(factors, both[0], both[1])

    return run


def reference_steps_run(data: np.ndarray, rank: int) -> Run:
    import torch

    torch.set_num_threads(2)

    def run(n_iter: int) -> None:
        factors = [torch.randn(n, rank) for n in TENSOR]
        for _ in range(n_iter):
            for start in range(0, data.shape[1], BATCH):
                both = [torch.from_numpy(x[start : start + BATCH]) for x in data]
                factors = _updated(factors, both[0], both[1])

    return run


def _changed(sample: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Augment one sample in one of three ways, one channel or three after another."""
    drawn = rng.random()
    if drawn > 0.66:
        for channel in range(CHANNELS):
            if rng.random() > 0.5:
                mode = rng.choice(["high", "low", "both", "no"])
                sample[channel] = _jittered(sample[channel], mode, rng)
    elif drawn > 0.33:
        for channel in range(CHANNELS):
            sample[channel] = _passed(sample[channel], BANDS[int(rng.random() > 0.5)])
    else:
        for first in range(0, CHANNELS, 3):
            sample[first : first + 3] = _turned(sample[first : first + 3], rng)
    return sample


def _jittered(channel: np.ndarray, mode: str, rng: np.random.Generator) -> np.ndarray:
    from scipy.interpolate import interp1d

    size = 0.002 * (np.ptp(channel) + 1e-4)
    n_knots = rng.integers(TIMES // 20, TIMES // 2)
    if mode in ("high", "both"):
        channel = channel + size * (2 * rng.random(TIMES) - 1)
    if mode in ("low", "both"):
        knots = size * (2 * rng.random(n_knots) - 1)
        line = interp1d(np.linspace(0, 1, n_knots), knots, kind="linear")
        channel = channel + line(np.linspace(0, 1, TIMES))
    return channel


def _passed(channel: np.ndarray, band: tuple[float, float]) -> np.ndarray:
    from scipy.signal import butter, lfilter

    half = RATE / 2
    numerator, denominator = butter(1, [band[0] / half, band[1] / half], btype="band")
    return np.array(lfilter(numerator, denominator, channel))


def _turned(channels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    x, y, z = axis = rng.uniform(-1, 1, 3)
    x, y, z = axis / np.linalg.norm(axis)
    angle = rng.uniform(-np.pi / 4, np.pi / 4)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    matrix = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)
    return (channels.T @ matrix).T


def _transformed(batch: Any) -> Any:
    """Transform one channel after another; logarithms of the real and of the imaginary parts."""
    import torch

    window = torch.ones(64)
    spectra = torch.stack(
        [
            torch.view_as_real(
                torch.stft(
                    batch[:, channel],
                    64,
                    2,
                    window=window,
                    center=False,
                    normalized=True,
                    return_complex=True,
                )
            )
            for channel in range(CHANNELS)
        ]
    )
    parts = [spectra[..., k].permute(1, 0, 2, 3) for k in (0, 1)]
    return torch.cat([torch.log(torch.abs(part) + 1e-3) for part in parts], dim=1)


def _updated(factors: list[Any], samples: Any, twins: Any) -> list[Any]:
    """Update rows and factors by one batch, as published (rate 0.005, ridge 0.001, epsilon 2)."""
    import torch

    rate, ridge, epsilon = 5e-3, 1e-3, 2.0
    A, B, C = factors
    n, rank = samples.shape[0], A.shape[1]
    eye = torch.eye(rank)
    products = [torch.einsum("ijkl,jr,kr,lr->ri", own, A, B, C) for own in (samples, twins)]
    gram = (A.T @ A) * (B.T @ B) * (C.T @ C)
    rows = [torch.linalg.solve(gram + ridge * eye, own).T.contiguous() for own in products]
    pull = torch.ones(n, n) / n - torch.eye(n) * (1 / n + 1e-2)
    inverse = torch.inverse(gram + ridge * eye)
    lengths = [torch.diag(1 / (own**2).sum(dim=1) ** 0.5) for own in rows]
    units = [length @ own for length, own in zip(lengths, rows, strict=True)]
    for mine, other in ((0, 1), (1, 0)):
        own, length = rows[mine], lengths[mine]
        for i in range(min(n, rank)):
            projector = eye - (own[i] @ own[i]) * length[i, i] ** 2
            step = epsilon * length[i, i] * (pull[i] @ units[other]) @ projector
            own[i] = (products[mine][:, i] - step) @ inverse
    X, Y = rows
    contracted = torch.einsum("ijkl,ir->rjkl", samples, X)
    contracted = contracted + torch.einsum("ijkl,ir->rjkl", twins, Y)
    cross = X.T @ X + Y.T @ Y
    for mode, letters in enumerate(("rjkl,kr,lr->rj", "rjkl,jr,lr->rk", "rjkl,jr,kr->rl")):
        others = [factor for k, factor in enumerate((A, B, C)) if k != mode]
        normal = cross * (others[0].T @ others[0]) * (others[1].T @ others[1]) + ridge * eye
        best = torch.linalg.solve(normal, torch.einsum(letters, contracted, *others)).T
        moved = (1 - rate) * (A, B, C)[mode] + rate * best
        A, B, C = (moved if k == mode else own for k, own in enumerate((A, B, C)))
    # What the program watches: the error of the reconstruction.
    model = torch.einsum("ir,jr,kr,lr->ijkl", X, A, B, C)
    torch.norm(model - samples) / torch.norm(samples)
    return [A, B, C]


def products_run(data: np.ndarray, rank: int) -> Run:
    """Return the matrix products of a sweep alone, of tensors that are there, by our kernel."""
    from polyad.augmented.views import View, contract_samples, first_inner, project_samples
    from polyad.core.threads import thread_limit

    rng = np.random.default_rng(0)
    factors = [rng.random((n, rank), dtype=np.float32) for n in TENSOR]
    rows = rng.random((BATCH, rank))
    both = data.reshape(2, -1, int(np.prod(TENSOR)))
    # Nobody asks for the squares.
    known = np.zeros(both.shape[1])

    def run(n_iter: int) -> None:
        with thread_limit(2):
            for start in list(range(0, both.shape[1], BATCH)) * n_iter:
                positions = np.arange(start, min(start + BATCH, both.shape[1]))
                views = [
                    View(own[positions[0] :][:BATCH], None, 1.0, positions, known) for own in both
                ]
                project_samples(views, factors)
                contract_samples(
                    views, [rows[: len(positions)]] * 2, factors[: first_inner(factors)]
                )

    return run


def blas_run(data: np.ndarray, rank: int) -> Run:
    """Return the matrix products of a sweep alone: a batch with a basis, and with its rows.

    In the fastest of the forms that were tried: rows in C order both times, memory that is there.
    """
    n = data.shape[1] if data.ndim == 5 else len(data)
    rng = np.random.default_rng(0)
    batch = rng.random((BATCH, int(np.prod(TENSOR))), dtype=np.float32)
    basis = rng.random((batch.shape[1], rank), dtype=np.float32)
    contracted = np.empty((rank, batch.shape[1]), dtype=np.float32)

    def run(n_iter: int) -> None:
        for _ in range(2 * n_iter * -(-n // BATCH)):  # of samples and of twins
            rows = np.ascontiguousarray((batch @ basis).T)
            np.matmul(rows, batch, out=contracted)

    return run


def copy_run(data: np.ndarray, rank: int) -> Run:
    """Return a copy of the tensors of samples and twins, a batch at a time.

    Where they are made in each sweep, all batches are in one place.
    """
    if data.ndim == 5:
        batches = [own[k : k + BATCH] for k in range(0, data.shape[1], BATCH) for own in data]
    else:
        one = np.ones((BATCH, *TENSOR), dtype=np.float32)
        batches = [one] * (2 * -(-len(data) // BATCH))
    place = np.empty_like(batches[0])

    def run(n_iter: int) -> None:
        for batch in batches * n_iter:
            np.copyto(place[: len(batch)], batch)

    return run


#: Case, its data, and the libraries.
CASES: dict[str, tuple[Callable[[], np.ndarray], dict[str, Callable[[Any, int], Run]]]] = {
    title(SAMPLES): (
        partial(signals, SAMPLES),
        {
            "polyad": polyad_run,
            "torch, as published": reference_run,
            "BLAS: the products of its updates": blas_run,
            "memory: a copy of its tensors": copy_run,
        },
    ),
    title(2 * SAMPLES): (
        partial(signals, 2 * SAMPLES),
        {"polyad": polyad_run, "BLAS: the products of its updates": blas_run},
    ),
    f"augmented: updates alone, {FEWER} tensors of 18 x 33 x 33, R={RANK}": (
        partial(tensors, FEWER),
        {
            "polyad": polyad_steps_run,
            "torch, as published": reference_steps_run,
            "polyad: the products of its updates": products_run,
            "BLAS: the products of its updates": blas_run,
            "memory: a copy of its tensors": copy_run,
        },
    ),
}


def main() -> None:
    """Print the seconds of the parts of a sweep."""
    own = signals(SAMPLES)
    preprocess, twins = _steps()
    rng = np.random.default_rng(0)
    batches = [own[start : start + BATCH] for start in range(0, SAMPLES, BATCH)]

    parts: dict[str, Callable[[np.ndarray], object]] = {
        "twins": lambda batch: twins(batch, rng),
        "transforms": lambda batch: (preprocess(batch), preprocess(batch)),
        "twins as published": lambda batch: [_changed(sample.copy(), rng) for sample in batch],
    }
    for name, part in parts.items():
        part(batches[0])
        started = time.perf_counter()
        for batch in batches:
            part(batch)
        print(f"{name:<24}{time.perf_counter() - started:8.3f} s")
    taken: dict[tuple[str, str], float] = {}
    for name, (make, libraries) in CASES.items():
        data = make()
        print(name)
        for library, prepare in libraries.items():
            run = prepare(data, RANK)
            run(1)
            seconds = []
            for n_iter in (1, 2, 1, 2):
                started = time.perf_counter()
                run(n_iter)
                seconds.append(time.perf_counter() - started)
            taken[name, library] = min(seconds[1::2]) - min(seconds[::2])
            print(f"  {library:<40}{taken[name, library]:8.3f} s", flush=True)
    _print_roofline(taken)


def _print_roofline(taken: dict[tuple[str, str], float]) -> None:
    """Print what bounds the updates, and how a sweep grows with the samples."""
    once, twice, updates = CASES
    # Samples and twins, with a basis and with their rows: a multiplication and an addition each.
    work = 2 * 2 * 2 * FEWER * int(np.prod(TENSOR)) * RANK
    own = taken[updates, "polyad"]
    products = taken[updates, "polyad: the products of its updates"]
    blas = taken[updates, "BLAS: the products of its updates"]
    copy = taken[updates, "memory: a copy of its tensors"]
    print(
        f"roofline: updates {work / own / 1e9:.0f} GFLOP/s; products are {products / own:.0%} of "
        f"their time, at {work / products / 1e9:.0f} GFLOP/s (BLAS {work / blas / 1e9:.0f}); a "
        f"copy of the tensors takes {copy / own:.0%} of it"
    )
    ratio = taken[twice, "polyad"] / taken[once, "polyad"]
    print(f"twice the samples: {ratio:.2f} times the seconds")


if __name__ == "__main__":
    main()

"""``warm-up``: compile what fits need, on all processors, before anybody waits for it.

Kernels are compiled for the types that they are given, so small data of every kind is fitted.
Kernels that share parts are compiled by one process: it compiles those parts once.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array

import polyad
from polyad.core.compiled import compile_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from numpy.typing import NDArray

_QUICK: dict[str, Any] = {"n_components": 2, "max_iter": 2, "random_state": 0, "n_jobs": 1}
_SHAPE = (8, 6, 5)


def add_to(commands: Any) -> None:
    """Add the command to those of a parser."""
    what = "compile everything now instead of on first use"
    parser = commands.add_parser("warm-up", help=what, description=f"{what}.".capitalize())
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="how many processes compile at the same time; all processors unless told",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Compile everything, and tell of each part that is done."""
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")  # no threads to inherit
    with ProcessPoolExecutor(max(1, given.jobs), mp_context=context) as pool:
        tasks = {pool.submit(compile_for, name): name for name in TASKS}
        for task in as_completed(tasks):
            sys.stdout.write(f"{tasks[task]}: {task.result():.0f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"compiled in {time.perf_counter() - began:.0f} s\n")
    return 0


def compile_for(task: str) -> float:
    """Do one of the tasks; return how many seconds this process has compiled for it."""
    before = compile_seconds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two iterations are no fit
        TASKS[task]()
    return compile_seconds() - before


def _counts(dtype: Any, mean: float = 2.0) -> NDArray[Any]:
    return np.random.default_rng(0).poisson(mean, _SHAPE).astype(dtype)


def _forms(dtype: Any) -> list[Any]:
    """Return counts that are dense, dense with gaps, and sparse, with three modes and with two."""
    dense = _counts(dtype)
    gaps = np.where(np.random.default_rng(1).random(_SHAPE) < 0.1, np.nan, dense).astype(dtype)
    return [dense, gaps, coo_array(dense), dense[:, 0], gaps[:, 0], coo_array(dense[:, 0])]


def _few_entries(dtype: Any, shape: tuple[int, ...]) -> coo_array:
    """Return a sparse tensor of which most cells are zero, with entries that are given twice."""
    generator = np.random.default_rng(2)
    coords = tuple(generator.integers(0, size, 40) for size in shape)
    twice: Any = tuple(np.concatenate([index, index]) for index in coords)
    return coo_array((np.ones(80, dtype), twice), shape=shape)


def _fit(estimator: Any, X: Any, y: Any = None) -> None:
    fitted = estimator.fit(X, y)
    if hasattr(fitted, "transform"):
        fitted.transform(X)
    if hasattr(fitted, "score"):
        fitted.score(X, y)


def _classical() -> None:
    classes = np.arange(_SHAPE[0]) % 2
    for dtype in (np.float64, np.float32):
        for X in _forms(dtype):
            for estimator in (polyad.CP, polyad.NonnegativeCP, polyad.SimilarityCP):
                _fit(estimator(**_QUICK), X)
            _fit(polyad.NonnegativeCP(**_QUICK, solver="mu"), X)
            _fit(polyad.SupervisedCP(**_QUICK), X, classes)
            _fit(polyad.StochasticCP(**_QUICK, batch_size=3), X)
            if isinstance(X, coo_array):
                _fit(polyad.CP(**_QUICK, missing="unobserved"), X)
                _fit(polyad.NonnegativeCP(**_QUICK, missing="unobserved"), X)
        _fit(polyad.CP(**_QUICK), _few_entries(dtype, (9, 8, 7, 6)))


def _poisson() -> None:
    for dtype in (np.float64, np.float32):
        for X in _forms(dtype):
            for solver in ("mu", "pdnr"):
                _fit(polyad.PoissonCP(**_QUICK, solver=solver), X)


def _generalized() -> None:
    for dtype in (np.float64, np.float32):
        for X in _forms(dtype):
            _fit(polyad.GeneralizedCP(**_QUICK, loss="poisson"), X)
            if isinstance(X, coo_array):
                _fit(polyad.GeneralizedCP(**_QUICK, missing="unobserved"), X)
        for X in (coo_array(_counts(dtype)), _few_entries(dtype, (300, 200, 100))):
            _fit(polyad.GeneralizedCP(**_QUICK, loss="poisson", solver="adam", epoch_iter=2), X)


def _wasserstein() -> None:
    for dtype in (np.float64, np.float32):
        few = coo_array(_counts(dtype, mean=0.3))
        for X in (few, _few_entries(dtype, (30, 200, 200))):
            _fit(polyad.WassersteinCP(**_QUICK), X)
            _fit(polyad.WassersteinCP(**_QUICK, costs="presence"), X)
        # So sharp that the usual way of solving does not suffice.
        _fit(polyad.WassersteinCP(**_QUICK, epsilon=1e-4), few)
        _fit(polyad.WassersteinCP(**_QUICK, transport="sinkhorn"), few)


def _quantile() -> None:
    X = np.random.default_rng(0).random((12, 6))
    quick: dict[str, Any] = {**_QUICK, "n_quantiles": 4}
    for model in (
        polyad.QMF(**quick),
        polyad.QMFQ(**quick),
        polyad.QMFQ(**quick, projector="nmf"),
    ):
        _fit(model, X)
    many_targets = np.random.default_rng(0).random((2, 400))
    for values in (X, many_targets):
        for operator in (polyad.soft.soft_rank, polyad.soft.soft_sort):
            polyad.soft.vjp(operator, values)[1](values)


def _tables() -> None:
    codes = np.random.default_rng(0).integers(0, 3, (30, 5)).astype(float)
    _fit(polyad.MixedMembership(**_QUICK), codes)
    _fit(polyad.MixedMembership(**_QUICK, refine=True), codes)
    _fit(polyad.DawidSkene(max_iter=2), codes)
    for dtype in (np.float64, np.float32):
        polyad.augmented.signals.STFT(n_fft=16)(np.ones((2, 1, 64), dtype))
        polyad.AugmentedCP(**_QUICK).fit(_counts(dtype))


#: What processes compile, that which takes longest first.
TASKS: dict[str, Callable[[], None]] = {
    "quantiles and soft operators": _quantile,
    "WassersteinCP": _wasserstein,
    "CP and its relatives": _classical,
    "PoissonCP": _poisson,
    "GeneralizedCP": _generalized,
    "tables": _tables,
}

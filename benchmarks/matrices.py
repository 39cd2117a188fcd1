"""Matrices of counts: polyad against scikit-learn's NMF, of the same start.

The data are 20,000 documents of 10,000 words with 20 planted topics, 1.4M nonzeros. The cases
``nonnegative matrix`` and ``Poisson matrix`` time iterations. The races of the same names compare
objectives after equal processor time of one thread, each library in a process of its own:
``python -m benchmarks.matrices case library`` prints the points of one as JSON.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.rounds import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from benchmarks.rounds import Watch

    Run = Callable[[int], Any]

SHAPE = (20_000, 10_000)
RANK = 20
N_WORDS = 1_510_000
# Processor seconds after which objectives are compared.
SECONDS = (2.0, 4.0, 8.0)
STAGES = tuple(f"scikit-learn, after {seconds:.0f} s" for seconds in SECONDS)


def topics() -> Any:
    """Return counts of words: documents mix few topics, words follow a power law in each."""
    from scipy.sparse import coo_array

    rng = np.random.default_rng(0)
    mixture = np.cumsum(rng.dirichlet(np.full(RANK, 0.1), SHAPE[0]), axis=1)
    length = rng.gamma(2.0, size=SHAPE[0])
    frequency = rng.permutation(1.0 / np.arange(1, SHAPE[1] + 1) ** 0.7)
    words = frequency[:, None] * rng.gamma(0.2, size=(SHAPE[1], RANK))
    document = np.repeat(np.arange(SHAPE[0]), rng.multinomial(N_WORDS, length / length.sum()))
    topic = (rng.random(document.size)[:, None] > mixture[document, :-1]).sum(axis=1)
    word = np.empty(document.size, np.int64)
    for r in range(RANK):
        chosen = topic == r
        share = words[:, r] / words[:, r].sum()
        word[chosen] = rng.choice(SHAPE[1], size=chosen.sum(), p=share)
    cells, counts = np.unique(document * SHAPE[1] + word, return_counts=True)
    return coo_array((counts.astype(float), np.unravel_index(cells, SHAPE)), shape=SHAPE)


def start_of(data: Any) -> list[np.ndarray]:
    """Return positive factors of a model with the sum of the data."""
    rng = np.random.default_rng(1)
    factors = [rng.uniform(0.1, 1.0, (size, RANK)) for size in SHAPE]
    mass = float(np.prod([factor.sum(axis=0) for factor in factors], axis=0).sum())
    return [factor * np.sqrt(data.data.sum() / mass) for factor in factors]


def polyad_run(data: Any, rank: int, *, estimator: str, **parameters: Any) -> Run:
    import polyad

    fit = partial(getattr(polyad, estimator), rank, init=start_of(data), tol=0, **parameters)

    def run(n_iter: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fit(max_iter=n_iter, n_jobs=2).fit(data)

    return run


def sklearn_run(data: Any, rank: int, **parameters: Any) -> Run:
    from sklearn.decomposition import NMF

    rows, columns = start_of(data)
    matrix = data.tocsr()

    def run(n_iter: int) -> Any:
        model = NMF(rank, init="custom", max_iter=n_iter, tol=0, **parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit_transform(matrix, W=rows.copy(), H=columns.T.copy())
        return model

    return run


_KULLBACK_LEIBLER = {"solver": "mu", "beta_loss": "kullback-leibler"}
#: For each case: polyad's estimator, and scikit-learn's parameters.
_PAIRS: dict[str, tuple[str, dict[str, str]]] = {
    "nonnegative matrix": ("NonnegativeCP", {"solver": "cd"}),
    "Poisson matrix": ("PoissonCP", _KULLBACK_LEIBLER),
}
_SIZE = "20000x10000, 1.4M nonzeros, R=20"
CASES: dict[str, dict[str, Callable[[Any, int], Run]]] = {
    f"{title} {_SIZE}": {
        "polyad": partial(polyad_run, estimator=estimator),
        "scikit-learn": partial(sklearn_run, **parameters),
    }
    for title, (estimator, parameters) in _PAIRS.items()
}
RACES = {f"race: objective of a {title} {_SIZE}": title for title in _PAIRS}


def polyad_points(data: Any, estimator: str) -> list[float]:
    """Return the objectives of one fit after the seconds, without its start and its final rows."""
    import polyad

    seen: list[tuple[float, float]] = []

    def look(iteration: Any) -> bool:
        seen.append((time.process_time(), iteration.objective))
        return seen[-1][0] - seen[0][0] > SECONDS[-1]

    fit = partial(getattr(polyad, estimator), RANK, init=start_of(data), tol=0, n_jobs=1)
    fit(max_iter=1).fit(data)
    fit(max_iter=10_000, callbacks=[look]).fit(data)
    # The first iteration is before the clock starts: it counts as long as the others.
    own = float(np.median(np.diff([when for when, _ in seen])))
    began = seen[0][0] - own
    return [[value for when, value in seen if when - began <= limit][-1] for limit in SECONDS]


def sklearn_points(data: Any, parameters: dict[str, str]) -> list[float]:
    """Return the objectives after as many iterations as there is time for."""
    run = sklearn_run(data, RANK, **parameters)
    seconds = []
    for n_iter in (1, 6):
        began = time.process_time()
        run(n_iter)
        seconds.append(time.process_time() - began)
    own = (seconds[1] - seconds[0]) / 5
    return [0.5 * run(round(limit / own)).reconstruction_err_ ** 2 for limit in SECONDS]


def run_one(title: str, library: str) -> None:
    estimator, parameters = _PAIRS[title]
    data = topics()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if library == "polyad":
            points = polyad_points(data, estimator)
        else:
            points = sklearn_points(data, parameters)
    print("result " + json.dumps(points), flush=True)


def objectives(title: str, _pending: Collection[str], watch: Watch) -> dict[str, Measurement]:
    """Measure scikit-learn's objectives as multiples of polyad's after the same time."""
    points, threads = {}, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for library in ("polyad", "scikit-learn"):
        points[library], failure = watch.result("matrices", RACES[title], library, **threads)
        if failure:
            return dict.fromkeys(STAGES, Measurement(failure=f"{library} {failure}"))
    pairs = zip(STAGES, points["polyad"], points["scikit-learn"], strict=True)
    return {
        stage: Measurement(ratio=other / own, remark="of polyad's objective")
        for stage, own, other in pairs
    }


if __name__ == "__main__":
    run_one(sys.argv[1], sys.argv[2])

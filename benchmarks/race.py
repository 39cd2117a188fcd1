"""Which loss is reached when: libraries that minimise the same loss by different iterations.

Each library gets the same data and start, and fits it with growing effort. The loss of what it
returns is then computed exactly, by the same function for all. ``make bench`` prints, for each
case, when polyad was at the loss that another library had after a time, as a part of that time.
``python -m benchmarks.race case library`` runs one and prints JSON.

Everything runs on one thread and the time is that of the processor, so that a machine that others
use too gives the same answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.rounds import Measurement, Watch

SHAPE = (1000, 800, 600)
RANK = 10
EPOCHS = (1, 2, 4, 8)

Curve = Iterator[tuple[float, Any]]


def planted_data(*, binary: bool) -> Any:
    """Return 230 thousand events that fall into the cells of a model of rank ten."""
    from scipy.sparse import coo_array

    generator = np.random.default_rng(0)
    factors = [generator.gamma(0.3, size=(n, RANK)) + 1e-3 for n in SHAPE]
    component = generator.integers(RANK, size=230_000)
    coords = np.empty((3, component.size), np.int64)
    for k, factor in enumerate(factors):
        for r in range(RANK):
            chosen = component == r
            share = factor[:, r] / factor[:, r].sum()
            coords[k, chosen] = generator.choice(SHAPE[k], size=chosen.sum(), p=share)
    cells, counts = np.unique(np.ravel_multi_index(tuple(coords), SHAPE), return_counts=True)
    values = np.ones(cells.size) if binary else counts.astype(float)
    return coo_array((values, np.unravel_index(cells, SHAPE)), shape=SHAPE)


def start_of(data: Any) -> list[np.ndarray]:
    """Return positive factors of a model with the sum of the data."""
    generator = np.random.default_rng(1)
    factors = [generator.uniform(0.1, 1.0, (n, RANK)) for n in SHAPE]
    mass = np.prod([factor.sum(axis=0) for factor in factors], axis=0).sum()
    return [factor * (data.data.sum() / mass) ** (1 / 3) for factor in factors]


def exact_loss(data: Any, model: Any, *, binary: bool) -> float:
    """Return the negative log-likelihood, without the part that does not depend on the model."""
    weights, factors = np.asarray(model[0], float), [np.asarray(f, float) for f in model[1]]
    rows = [factor[index] for factor, index in zip(factors, data.coords, strict=True)]
    stored = np.prod(rows, axis=0) @ weights
    if binary:
        total = 0.0
        for i in range(0, SHAPE[0], 20):
            left = (factors[0][i : i + 20, None, :] * (factors[1] * weights)).reshape(-1, RANK)
            total += float(np.log1p(left @ factors[2].T).sum())
    else:
        total = float(np.prod([factor.sum(axis=0) for factor in factors], axis=0) @ weights)
    return total - float(data.data @ np.log(stored + 1e-10))


def unit_of(data: Any, estimator: str, parameters: dict[str, Any]) -> float:
    """Return what a fit divides its data by."""
    from polyad.cp.generalized.problem import find_exponent
    from polyad.losses.names import read_loss

    if estimator == "PoissonCP":
        return 1.0
    return 2.0 ** find_exponent(data, read_loss(parameters["loss"]), zeros=True)


def polyad_curve(data: Any, estimator: str, **parameters: Any) -> Curve:
    """Yield the states of one fit, and the time without that of looking at them."""
    import polyad

    unit = unit_of(data, estimator, parameters)

    seen: list[tuple[float, Any]] = []
    paused = 0.0

    def look(iteration: Any) -> None:
        nonlocal paused
        now = time.process_time()
        state = iteration.state
        weights = unit * getattr(state, "weights", np.ones(RANK))
        seen.append((now - started - paused, (weights, [f.copy() for f in state.factors])))
        paused += time.process_time() - now

    fit = partial(
        getattr(polyad, estimator), RANK, init=start_of(data), tol=0, n_jobs=1, **parameters
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A first fit warms up. A fit ends where it stops, not with the rows of the samples, which
        # the other library does not solve for.
        for seconds in (0.0, 8.0):
            seen, paused = [], 0.0
            started = time.process_time()
            with contextlib.suppress(_EnoughError):
                fit(callbacks=[look, partial(_stop_after, seconds)]).fit(data)
    yield from seen


class _EnoughError(Exception):
    """A fit has run long enough."""


def _stop_after(seconds: float, iteration: Any) -> None:
    if iteration.seconds > seconds or iteration.number > 200:
        raise _EnoughError


def pygenten_curve(data: Any, loss: str, **parameters: Any) -> Curve:
    """Yield the results of fits with more and more epochs."""
    import pygenten
    import pyttb

    subscripts = np.stack([np.asarray(row, dtype=np.int64) for row in data.coords], axis=1)
    tensor = pygenten.make_gt_sptensor(
        pyttb.sptensor(subscripts, data.data[:, None], shape=data.shape)
    )
    init = pyttb.ktensor([np.asfortranarray(f) for f in start_of(data)], np.ones(RANK))
    # The first fit warms up.
    for n_epochs in (EPOCHS[0], *EPOCHS):
        started = time.process_time()
        model = pygenten.gcp_sgd(
            tensor,
            rank=RANK,
            init=init,
            loss_function_type=loss,
            maxiters=n_epochs,
            gcp_seed=1,
            seed=1,
            printitn=0,
            fuse=True,
            sampling_type=pygenten.SemiStratified,
            **parameters,
        )[0]
        seconds = time.process_time() - started
        yield seconds, (model.weights, model.factor_matrices)


def _pygenten(loss: str) -> dict[str, Callable[[Any], Curve]]:
    """Return pygenten with settings that did well in a short search.

    Tried were 2 and 10 thousand cells of either kind with rates of 0.003, 0.01 and 0.03, in both
    ways of sampling, and its default of 69 thousand cells with a rate of 0.001. Larger rates end
    higher here, and the default takes many times longer.
    """
    settings = {"num_samples_nonzeros_grad": 10_000, "num_samples_zeros_grad": 10_000}
    return {"pygenten": partial(pygenten_curve, loss=loss, rate=1e-3, epoch_iters=500, **settings)}


#: For each case: whether the data is binary, and the libraries.
RACES: dict[str, tuple[bool, dict[str, Callable[[Any], Curve]]]] = {
    "GCP of counts": (
        False,
        {
            "polyad": partial(
                polyad_curve,
                estimator="GeneralizedCP",
                loss="poisson",
                solver="adam",
                random_state=0,
            ),
            **_pygenten("poisson"),
        },
    ),
    "GCP of binary data": (
        True,
        {
            "polyad": partial(
                polyad_curve,
                estimator="GeneralizedCP",
                loss="bernoulli",
                solver="adam",
                random_state=0,
            ),
            **_pygenten("bernoulli"),
        },
    ),
    "CP-APR against GCP of counts": (
        False,
        {"polyad": partial(polyad_curve, estimator="PoissonCP"), **_pygenten("poisson")},
    ),
}


#: What the table says of the other library.
STAGES = tuple(f"pygenten, {n} epoch{'s' * (n > 1)}" for n in EPOCHS)


def run_one(case: str, library: str) -> None:
    binary, libraries = RACES[case]
    data = planted_data(binary=binary)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        curve = list(libraries[library](data))
        if binary:  # an exact sum over all cells takes seconds: the first points and the last do
            curve = [*curve[:6], *curve[6:][-1:]]
    points = [(seconds, exact_loss(data, model, binary=binary)) for seconds, model in curve]
    print("\nresult " + json.dumps(points), flush=True)


def reached(title: str, _pending: Collection[str], watch: Watch) -> dict[str, Measurement]:
    """Measure the part of the other's time after which polyad is at its loss."""
    curves, threads = {}, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for library in RACES[title][1]:
        curves[library], failure = watch.result("race", title, library, **threads)
        if failure:
            return dict.fromkeys(STAGES, Measurement(failure=f"{library} {failure}"))
    found = {}
    for stage, (seconds, loss) in zip(STAGES, curves["pygenten"][1:], strict=True):
        own = [when for when, value in curves["polyad"] if value <= loss]
        # An infinite part says that polyad was never there.
        found[stage] = Measurement(seconds, own[0] / seconds if own else float("inf"))
    return found


if __name__ == "__main__":
    run_one(sys.argv[1], sys.argv[2])

"""Cases of functions: random arguments, at times one of them nonsense, and what must hold then."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

import polyad
from polyad import KruskalTensor, LabelledTensor, datasets, io, metrics, soft, transport
from polyad.selection import select_rank
from tests.fuzz.data import Rng, Wish, chance, pick, random_data, random_shape, summed
from tests.fuzz.judge import RefusedError, close, demand, finite, judged, promised, same_bits
from tests.fuzz.parameters import NONSENSE, wild

if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[[str], None]


def case(rng: Rng, number: int, say: Say) -> bool:
    """Run one random case; say what it is, and whether it was not refused."""
    shares = np.array(list(CASES.values()))
    chosen = list(CASES)[int(rng.choice(len(CASES), p=shares / shares.sum()))]
    try:
        chosen(rng, say)
    except RefusedError:
        return False
    return True


def call(rng: Rng, say: Say, function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function, with one argument of nonsense at times."""
    if chance(rng, 0.12):
        name = pick(rng, sorted(arguments))
        arguments[name] = pick(rng, NONSENSE)
        say(f"{function.__name__} with {name}={arguments[name]!r}")
        with judged(function.__name__):
            function(**arguments)
        raise RefusedError  # nothing more is promised
    say(f"{function.__name__}({', '.join(f'{k}={_shown(v)}' for k, v in arguments.items())})")
    with judged(function.__name__):
        return function(**arguments)


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) < 120 else f"<{type(value).__name__}{getattr(value, 'shape', '')}>"


def values(rng: Rng, shape: tuple[int, ...] | int) -> np.ndarray:
    """Return numbers with ties, outliers and any scale."""
    x = rng.standard_normal(shape) if chance(rng, 0.6) else rng.integers(0, 4, shape).astype(float)
    if chance(rng, 0.2):
        x = np.sign(x) * np.exp(np.abs(x) * pick(rng, (3.0, 10.0, 60.0)))
    if chance(rng, 0.2):
        x = x * 10.0 ** rng.uniform(-300, 300)
    return x.astype(pick(rng, ("float64", "float64", "float32"))) if np.abs(x).max() < 1e30 else x


def masses(rng: Rng, n: int) -> np.ndarray:
    """Return numbers that are not negative, not all of them zero."""
    a = rng.random(n) * (rng.random(n) < 0.8) * pick(rng, (1.0, 1.0, 1e-6, 1e6))
    if chance(rng, 0.1):
        a = a * 10.0 ** rng.uniform(-8, 8, n)
    a[int(rng.integers(n))] += 0.1
    return a


# Soft operators.


def soft_operator(rng: Rng, say: Say) -> None:
    """Soft operators are finite, keep order and mean, and stay within the range of the values."""
    n = pick(rng, (1, 2, 3, 5, 17))
    x = values(rng, pick(rng, (n, (n,), (3, n), (2, 1, n))))
    settings: dict[str, Any] = {
        "epsilon": wild(rng, 0.0, None),
        "squash": chance(rng, 0.7),
        "n_iter": pick(rng, (None, None, None, 1, 10)),
        "tol": pick(rng, (1e-9, 1e-9, 1e-3, 1e-15)),
    }
    if chance(rng, 0.3):
        settings["weights"] = masses(rng, n)
    operator = pick(rng, (soft.soft_rank, soft.soft_sort, soft.soft_quantile, None))
    solved = settings["n_iter"] is None
    if operator is soft.soft_rank:
        out = call(rng, say, operator, x=x, **settings)
        finite(out, "ranks")
        demand(out.min() >= 1 - 1e-6 * n, f"a rank of {out.min()}")
        demand(out.max() <= n * (1 + 1e-6), f"a rank of {out.max()}")
        increasing(x, out, "ranks")
        return
    if operator is soft.soft_sort:
        m = pick(rng, (None, 1, 2, n + 2))
        out = call(rng, say, operator, x=x, n_targets=m, **settings)
        within(out, x, "sorted values")
        demand((np.diff(out.astype(float)) >= -_slack(x)).all() or not solved, "not sorted")
        return
    if operator is soft.soft_quantile:
        levels = pick(rng, (0.5, 0.0, 1.0, [0.1, 0.5, 0.9], rng.random(3)))
        within(call(rng, say, operator, x=x, levels=levels, **settings), x, "quantiles")
        return
    quantiles = np.sort(values(rng, pick(rng, (1, 2, 4))))
    out = call(rng, say, soft.quantile_normalize, x=x, quantiles=quantiles, **settings)
    within(out, quantiles, "normalized values")
    increasing(x, out, "normalized values", scale=float(np.abs(quantiles).max()))


def _slack(x: np.ndarray) -> float:
    return (1e-4 if x.dtype == np.float32 else 1e-6) * float(np.abs(x).max())


def within(out: np.ndarray, x: np.ndarray, what: str) -> None:
    finite(out, what)
    slack = _slack(x if out.dtype == np.float64 else x.astype(np.float32))
    demand(out.min() >= float(x.min()) - slack, f"{what}: {out.min()} is below {x.min()}")
    demand(out.max() <= float(x.max()) + slack, f"{what}: {out.max()} is above {x.max()}")


def increasing(x: np.ndarray, out: np.ndarray, what: str, scale: float | None = None) -> None:
    """Demand that larger values have no smaller results."""
    order = np.argsort(x, axis=-1, kind="stable")
    sorted_out = np.take_along_axis(out.astype(float), order, axis=-1)
    size = float(np.abs(out).max()) if scale is None else scale
    slack = (1e-4 if out.dtype == np.float32 else 1e-7) * size
    demand((np.diff(sorted_out, axis=-1) >= -slack).all(), f"{what} do not keep the order")


# Transport.


def sinkhorn(rng: Rng, say: Say) -> None:
    """What says that it converged is finite and has the masses it was given."""
    m, n = pick(rng, (1, 2, 4)), pick(rng, (1, 3, 4))
    a, b = masses(rng, m), masses(rng, n)
    penalty = pick(rng, (None, None, wild(rng, 0.0, None)))
    if penalty is None:
        b = b * (a.sum() / b.sum())
    cost = rng.random((m, n)) * pick(rng, (1.0, 1.0, 0.0, 1e-9, 1e9))
    result = call(
        *(rng, say, transport.sinkhorn),
        **{"a": a, "b": b, "cost": cost, "epsilon": wild(rng, 0.0, None)},
        **{"marginal_penalty": penalty, "max_iter": pick(rng, (1, 50, 2000)), "tol": 1e-9},
    )
    if not result.converged:
        return
    finite(result.plan, "plan")
    finite(float(result.value), "value")
    demand((result.plan >= 0).all(), "plan below zero")
    if penalty is None:
        close(result.plan.sum(axis=1), a, 1e-5, "rows of the plan")
        close(result.plan.sum(axis=0), b, 1e-5, "columns of the plan")


def distance(rng: Rng, say: Say) -> None:
    """Distances are not negative, zero of equals, and symmetric."""
    shape = pick(rng, ((3,), (5,), (4, 2), (3, 3, 2), (1,)))
    x = masses(rng, int(np.prod(shape))).reshape(shape)
    y = x[..., ::-1] if len(shape) == 1 else x[::-1]
    if chance(rng, 0.2):
        y = x * (1 + 1e-13 * rng.standard_normal(shape))
    if chance(rng, 0.3):
        x, y = x * 1e9, y * 1e9
    costs = [_cost(rng, n) for n in shape]
    cost = costs[0] if len(shape) == 1 else costs
    if len(shape) > 1:  # masses of all fibres must agree: move along the first mode only
        cost = costs[0] if len(shape) == 2 else [costs[0], *costs[1:]]
        y = x if len(shape) == 3 else y
    found = call(rng, say, transport.wasserstein_distance, x=x, y=y, cost=cost)
    size = float(x.sum() * max(c.max() for c in costs))
    demand(np.isfinite(found) and found >= 0, f"a distance of {found}")
    with promised("distance the other way"):
        back = transport.wasserstein_distance(y, x, cost)
    close(found, back, 1e-7, "distance and back", size)
    with promised("distance of equals"):
        demand(transport.wasserstein_distance(x, x, cost) == 0, "not zero for equals")


def _cost(rng: Rng, n: int) -> np.ndarray:
    return pick(
        rng, (transport.one_identity_cost(n), transport.random_cost(n, 0), np.zeros((n, n)))
    )


def costs(rng: Rng, say: Say) -> None:
    """Costs that are made from data are costs."""
    data = random_data(rng, Wish("nonnegative", missing=False))
    make = pick(rng, (transport.cosine_cost, transport.presence_cost, transport.tfidf_cost))
    mode = int(rng.integers(data.values.ndim))
    found = call(rng, say, make, data=data.X, mode=mode)
    with promised("the check of the cost"):
        transport.validate_cost(found, data.values.shape[mode])


# Metrics and the choice of the rank.


def kruskal(rng: Rng, shape: tuple[int, ...], rank: int) -> KruskalTensor:
    factors = [rng.random((n, rank)) * (rng.random((n, rank)) < 0.9) for n in shape]
    return KruskalTensor(rng.random(rank) * pick(rng, (1.0, 1.0, 0.0, 1e30, 1e-30)), factors)


def measures(rng: Rng, say: Say) -> None:
    """Measures of a decomposition are finite, and right for a perfect one."""
    data = random_data(rng, Wish("nonnegative"))
    model = kruskal(rng, data.values.shape, pick(rng, (1, 2, 3)))
    name = pick(rng, ("explained_variation", "relative_error", "poisson_deviance"))
    name = "core_consistency" if chance(rng, 0.2) else name
    found = call(rng, say, getattr(metrics, name), X=data.X, model=model)
    if name != "poisson_deviance" or found != np.inf:
        finite(float(found), name)
    with promised("factor_match_score"):
        score = metrics.factor_match_score(model, model)
    demand(-1e-9 <= score <= 1 + 1e-9, f"a factor match score of {score}")


def matching(rng: Rng, say: Say) -> None:
    shape = random_shape(rng)
    pair = [kruskal(rng, shape, pick(rng, (1, 2, 3))) for _ in range(2)]
    found = call(
        *(rng, say, metrics.factor_match_score),
        **{"first": pair[0], "second": pair[1], "weights": chance(rng, 0.5), "skip_modes": ()},
    )
    demand(np.isfinite(found) and abs(found) <= 1 + 1e-6, f"a score of {found}")


def evaluation(rng: Rng, say: Say) -> None:
    """Scores of features are finite, whatever the features."""
    n = pick(rng, (6, 12, 20))
    features = values(rng, (n, pick(rng, (1, 2, 3))))
    y = rng.integers(0, 2, n)
    y[:4] = (0, 0, 1, 1)
    arguments = {"features": features, "y": y, "cv": pick(rng, (2, 3)), "n_jobs": 1}
    seed = pick(rng, (0, 1, 2**32 - 1, 2**32, -1, None))
    found = call(rng, say, metrics.evaluate_features, **arguments, random_state=seed)
    finite(found.scores, "scores")
    repr(found)


def rank(rng: Rng, say: Say) -> None:
    """The choice of the rank has an answer or says why not."""
    X, _ = datasets.make_low_rank((8, 5, 4), 1, noise=0.1, nonnegative=True, random_state=0)
    X = np.abs(X) * (rng.random(X.shape) < pick(rng, (1.0, 0.3)))
    estimator = pick(rng, (polyad.CP, polyad.NonnegativeCP, polyad.PoissonCP))
    found = call(
        *(rng, say, select_rank),
        **{"estimator": estimator(max_iter=3), "X": X if chance(rng, 0.6) else sparse.coo_array(X)},
        **{"ranks": pick(rng, ([1, 2], [2], range(1, 3), [1, 1])), "n_repeats": 2},
        **{"method": pick(rng, ("heldout", "stability", ["heldout", "core_consistency"]))},
        **{"random_state": 0, "heldout_share": pick(rng, (0.1, 0.3, 0.9))},
    )
    demand(found.best_rank is None or found.best_rank in (1, 2), f"best_rank={found.best_rank}")
    found.to_frame()


# Tables and files.


def long_table(rng: Rng, n: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "who": [pick(rng, ("a", "b", "é", "")) for _ in range(n)],
            "what": rng.integers(0, 3, n),
            "when": pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 3, n), "D"),
            "value": rng.standard_normal(n) * pick(rng, (1.0, 1e200, 1e-200)),
        }
    )


def frames(rng: Rng, say: Say) -> None:
    """A table becomes a tensor and a table again, with the same sums."""
    frame = long_table(rng, pick(rng, (0, 1, 5, 30)))
    modes = pick(rng, (["who", "what"], ["who", "what", "when"], ["when", "who"]))
    arguments = {
        "modes": modes,
        "value": pick(rng, ("value", "value", None)),
        "duplicates": pick(rng, ("sum", "sum", "count", "error")),
        "dtype": pick(rng, (None, None, "float32")),
    }
    tensor = call(rng, say, LabelledTensor.from_frame, frame=frame, **arguments)
    with promised("table and back"):
        again = LabelledTensor.from_frame(tensor.to_frame(), modes=modes, value="value")
        wanted = tensor.labels[0][rng.permutation(len(tensor.labels[0]))]
        turned = tensor.align({modes[0]: wanted})
        back = turned.align({modes[0]: tensor.labels[0]})
    close(again.data.toarray(), tensor.data.toarray(), 1e-6, "table and back")
    same_bits(back.data.toarray(), tensor.data.toarray(), "aligned and back")


def events(rng: Rng, say: Say) -> None:
    """Records become counts of pairs."""
    n = pick(rng, (1, 5, 30))
    tables = [
        pd.DataFrame(
            {
                "patient": rng.integers(0, 4, n),
                "encounter": rng.integers(0, 6, n),
                "code": [pick(rng, codes) for _ in range(n)],
                "reason_code": [pick(rng, ("J", "I", None)) for _ in range(n)],
            }
        )
        for codes in (("J", "I"), ("R", "C"))
    ]
    tensor = call(
        *(rng, say, io.tensor_from_events),
        **{
            "medications": tables[1],
            "diagnoses": tables[0],
            "link": pick(rng, ("encounter", "reason")),
        },
        **{"binary": chance(rng, 0.3), "min_patients": pick(rng, (1, 1, 2))},
        **{"max_codes": pick(rng, (None, 1)), "patients": pick(rng, (None, None, [0, 1, 9]))},
        columns=None,
    )
    demand((tensor.data.data >= 1).all(), "counts below one")


def tns(rng: Rng, say: Say) -> None:
    """A tensor comes back from a file bit for bit; files of anything else are refused."""
    shape = random_shape(rng)
    X = values(rng, shape).astype(float) * (rng.random(shape) < 0.5)
    tensor = summed(rng, X) if chance(rng, 0.5) else sparse.coo_array(X)
    base = pick(rng, (0, 1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / pick(rng, ("a.tns", "a.tns.gz"))
        call(rng, say, io.write_tns, path=path, tensor=tensor, index_base=base)
        if chance(rng, 0.4):
            text = bytearray(path.read_bytes())
            for _ in range(pick(rng, (1, 3, 10))):
                if text:
                    text[int(rng.integers(len(text)))] = pick(rng, (*b"0 9.-#e\n\t\xff\x00", 65))
            path.write_bytes(bytes(text))
            say("read_tns of a damaged file")
            with judged("read_tns"):
                io.read_tns(path, shape=shape, index_base=base)
            return
        with promised("read_tns") if tensor.nnz else judged("read_tns"):
            again = io.read_tns(path, shape=shape, index_base=base)
    close(again.toarray(), tensor.toarray(), 1e-15, "a tensor from its file")


def noise(rng: Rng, say: Say) -> None:
    """Noise and random tensors are what they say."""
    shape = random_shape(rng)
    X = call(
        *(rng, say, datasets.make_sparse),
        **{"shape": shape, "n_draws": pick(rng, (1, 10)), "skew": pick(rng, (0.0, 1.0, 30.0))},
        random_state=0,
    )
    noisy = call(rng, say, datasets.add_noise, X=X, p=pick(rng, (0.0, 0.5, 1.0)), random_state=0)
    kept = X.toarray() > 0
    same_bits(noisy.toarray()[kept], X.toarray()[kept], "entries that noise leaves alone")
    made, truth = call(
        *(rng, say, datasets.make_low_rank),
        **{"shape": shape, "n_components": pick(rng, (1, 3)), "noise": wild(rng, 0.0, 1e3)},
        random_state=0,
    )
    finite(made, "make_low_rank")
    demand(truth.shape == made.shape, "the truth has another shape")


#: Each kind of case with its share.
CASES: dict[Callable[[Rng, Say], None], float] = {
    soft_operator: 6,
    sinkhorn: 3,
    distance: 2,
    costs: 1,
    measures: 2,
    matching: 1,
    evaluation: 1,
    rank: 0.5,
    frames: 1,
    events: 1,
    tns: 1,
    noise: 1,
}

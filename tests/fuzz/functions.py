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

    # Calls a function with the arguments of a case, one of which is nonsense at times.
    Call = Callable[..., Any]


def case(rng: Rng, number: int, say: Callable[[str], None]) -> bool:
    """Run one random case; say what it is, and whether it was not refused."""

    def call(function: Callable[..., Any], **arguments: Any) -> Any:
        wild_one = pick(rng, sorted(arguments)) if chance(rng, 0.12) else None
        if wild_one is not None:
            arguments[wild_one] = pick(rng, NONSENSE)
        say(f"{function.__name__}({', '.join(f'{k}={_shown(v)}' for k, v in arguments.items())})")
        with judged(function.__name__):
            found = function(**arguments)
        if wild_one is not None:
            raise RefusedError  # nothing more is promised
        return found

    try:
        CASES[number % len(CASES)](rng, call)
    except RefusedError:
        return False
    return True


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) < 120 else f"<{type(value).__name__}{getattr(value, 'shape', '')}>"


def values(rng: Rng, shape: tuple[int, ...] | int) -> np.ndarray:
    """Return numbers with ties, outliers and any scale."""
    x = rng.standard_normal(shape) if chance(rng, 0.6) else rng.integers(0, 4, shape).astype(float)
    if chance(rng, 0.2):
        x = np.sign(x) * np.exp(np.abs(x) * pick(rng, (3.0, 10.0, 60.0)))
    if chance(rng, 0.2):
        x = x * min(10.0 ** rng.uniform(-250, 250), 1e300 / max(float(np.abs(x).max()), 1.0))
    return x.astype("float32") if np.abs(x).max() < 1e30 and chance(rng, 0.3) else x


def masses(rng: Rng, n: int) -> np.ndarray:
    """Return numbers that are not negative, not all of them zero."""
    a = rng.random(n) * (rng.random(n) < 0.8) * pick(rng, (1.0, 1.0, 1e-6, 1e6))
    a[int(rng.integers(n))] += 0.1
    return a * 10.0 ** rng.uniform(-8, 8, n) if chance(rng, 0.1) else a


def soft_operators(rng: Rng, call: Call) -> None:
    """Soft operators are finite, keep the order, and stay within the range of what they average."""
    n = pick(rng, (1, 2, 3, 5, 17))
    x = values(rng, pick(rng, ((n,), (3, n), (2, 1, n))))
    settings: dict[str, Any] = {
        "x": x,
        "epsilon": wild(rng),
        "squash": pick(rng, (True, True, False, "robust")),
        "n_iter": pick(rng, (None, None, None, 1, 10)),
        "tol": pick(rng, (1e-9, 1e-9, 1e-3)),
        "weights": pick(rng, (None, None, masses(rng, n))),
    }
    name = pick(rng, ("rank", "sort", "quantile", "normalize", "mask", "levels", "sort with"))
    if name == "rank":
        found, targets = call(soft.soft_rank, **settings), np.array([1.0, n])
    elif name == "mask":
        found = call(soft.soft_topk_mask, k=int(rng.integers(1, n + 1)), **settings)
        targets = np.array([0.0, 1.0])
    elif name == "levels":
        found, targets = call(soft.quantize, n_levels=pick(rng, (1, 3, n + 1)), **settings), x
    elif name == "sort with":
        top_k = pick(rng, (None, 1, n))
        found, targets = call(soft.soft_sort_with, criterion=-x, top_k=top_k, **settings), x
    elif name == "sort":
        found = call(soft.soft_sort, n_targets=pick(rng, (None, 1, 2, n + 2)), **settings)
        targets = x
    elif name == "quantile":
        levels = pick(rng, (0.5, 0.0, 1.0, [0.1, 0.5, 0.9], rng.random(3)))
        found, targets = call(soft.soft_quantile, levels=levels, **settings), x
    else:
        targets = np.sort(values(rng, pick(rng, (1, 2, 4))))
        found = call(soft.quantile_normalize, quantiles=targets, **settings)
    finite(found, f"soft {name}")
    tiny = float(np.finfo(found.dtype).tiny)
    found, targets = found.astype(float), targets.astype(float)
    slack = (1e-4 if x.dtype == np.float32 else 1e-6) * float(np.abs(targets).max()) + tiny
    demand(found.min() >= targets.min() - slack, f"{name}: {found.min()} below {targets.min()}")
    demand(found.max() <= targets.max() + slack, f"{name}: {found.max()} above {targets.max()}")
    if name in ("rank", "normalize", "mask", "levels"):  # larger values have no smaller results
        found = np.take_along_axis(found, np.argsort(x, axis=-1, kind="stable"), axis=-1)
    if name == "sort with":
        found = found[..., ::-1]
    if name != "quantile" and (not name.startswith("sort") or settings["n_iter"] is None):
        demand((np.diff(found, axis=-1) >= -slack).all(), f"{name}: not in order")


def sinkhorn(rng: Rng, call: Call) -> None:
    """What says that it converged is finite and has the masses it was given."""
    a, b = masses(rng, pick(rng, (1, 2, 4))), masses(rng, pick(rng, (1, 3, 4)))
    penalty = pick(rng, (None, None, wild(rng)))
    b = b if penalty is not None else b * (a.sum() / b.sum())
    cost = rng.random((a.size, b.size)) * pick(rng, (1.0, 1.0, 0.0, 1e-9, 1e9))
    steps = {"max_iter": pick(rng, (1, 50, 2000)), "tol": 1e-9}
    given = {"a": a, "b": b, "cost": cost, "epsilon": wild(rng), "marginal_penalty": penalty}
    result = call(transport.sinkhorn, **given, **steps)
    if result.converged:
        finite([result.plan, float(result.value)], "plan")
        demand((result.plan >= 0).all(), "plan below zero")
        if penalty is None:
            close(result.plan.sum(axis=1), a, 1e-5, "rows of the plan")
            close(result.plan.sum(axis=0), b, 1e-5, "columns of the plan")


def distances(rng: Rng, call: Call) -> None:
    """Distances are not negative, zero of equals, and symmetric."""
    shape = pick(rng, ((1,), (3,), (5,), (4, 2), (3, 3, 2)))
    x = masses(rng, int(np.prod(shape))).reshape(shape) * pick(rng, (1.0, 1e9))
    y = pick(rng, (x[::-1], x * (1 + 1e-13 * rng.standard_normal(shape))))
    makes = (transport.one_identity_cost, transport.random_cost, lambda n: np.zeros((n, n)))
    each = [pick(rng, makes)(n) for n in shape]
    cost = each[0] if len(shape) < 3 else each
    found = call(transport.wasserstein_distance, x=x, y=y if len(shape) < 3 else x, cost=cost)
    demand(np.isfinite(found) and found >= 0, f"a distance of {found}")
    with promised("other distances"):
        same = transport.wasserstein_distance(x, x, cost)
        back = transport.wasserstein_distance(y if len(shape) < 3 else x, x, cost)
    demand(same == 0, f"a distance of {same} of equals")
    close(found, back, 1e-7, "distance and back", float(x.sum()))


def costs(rng: Rng, call: Call) -> None:
    """Costs that are made from data are costs."""
    data = random_data(rng, Wish("nonnegative", missing=False))
    make = pick(rng, (transport.cosine_cost, transport.presence_cost, transport.tfidf_cost))
    mode = int(rng.integers(data.values.ndim))
    found = call(make, data=data.X, mode=mode)
    with promised("the check of the cost"):
        transport.validate_cost(found, data.values.shape[mode])


def measures(rng: Rng, call: Call) -> None:
    """Measures of a decomposition are numbers."""
    data = random_data(rng, Wish("nonnegative"))
    ranks = pick(rng, (1, 2, 3)), pick(rng, (1, 2))
    first, second = (
        KruskalTensor(
            rng.random(rank) * pick(rng, (1.0, 1.0, 0.0, 1e30, 1e-30)),
            [rng.random((n, rank)) * (rng.random((n, rank)) < 0.9) for n in data.values.shape],
        )
        for rank in ranks
    )
    score = call(metrics.factor_match_score, first=first, second=second, weights=chance(rng, 0.5))
    demand(np.isfinite(score) and abs(score) <= 1 + 1e-6, f"a factor match score of {score}")
    names = ("explained_variation", "relative_error", "poisson_deviance", "core_consistency")
    found = float(call(getattr(metrics, pick(rng, names)), X=data.X, model=first))
    # Of a model of something for nothing, or of nothing for something, the error is infinite.
    demand(not np.isnan(found), "a measure of NaN")


def evaluation(rng: Rng, call: Call) -> None:
    """Scores of features are finite, whatever the features."""
    n = pick(rng, (6, 12, 20))
    y = np.concatenate([[0, 0, 1, 1], rng.integers(0, 2, n - 4)])
    given = {"features": values(rng, (n, pick(rng, (1, 2, 3)))), "y": y, "n_jobs": 1}
    seed = pick(rng, (0, 1, 2**32 - 1, 2**32, -1, None))
    found = call(metrics.evaluate_features, **given, cv=pick(rng, (2, 3)), random_state=seed)
    finite(found.scores, "scores")


def ranks(rng: Rng, call: Call) -> None:
    """The choice of the rank has an answer or says why not."""
    X, _ = datasets.make_low_rank((8, 5, 4), 1, noise=0.1, nonnegative=True, random_state=0)
    X = np.abs(X) * (rng.random(X.shape) < pick(rng, (1.0, 0.3)))
    given = {"X": X if chance(rng, 0.6) else sparse.coo_array(X), "random_state": 0}
    estimator = pick(rng, (polyad.CP, polyad.NonnegativeCP, polyad.PoissonCP))(max_iter=3)
    methods = ("heldout", "stability", ["heldout", "core_consistency"])
    found = call(
        *(select_rank,),
        **{"estimator": estimator, **given, "ranks": pick(rng, ([1, 2], [2], range(1, 3), [1, 1]))},
        **{"method": pick(rng, methods), "heldout_share": pick(rng, (0.1, 0.9)), "n_repeats": 2},
    )
    demand(found.best_rank in (1, 2, None), f"best_rank={found.best_rank}")
    found.to_frame(), found.reason


def frames(rng: Rng, call: Call) -> None:
    """A table becomes a tensor and a table again, with the same sums."""
    n = pick(rng, (0, 1, 5, 30))
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 3, n), "D")
    frame = pd.DataFrame({"who": rng.choice(["a", "é", ""], n), "what": rng.integers(0, 3, n)})
    frame = frame.assign(when=days, value=rng.standard_normal(n) * pick(rng, (1.0, 1e200)))
    modes = pick(rng, (["who", "what"], ["who", "what", "when"], ["when", "who"]))
    given = {"value": pick(rng, ("value", "value", None)), "dtype": pick(rng, (None, "float32"))}
    given["duplicates"] = pick(rng, ("sum", "sum", "count", "error"))
    given["entries"] = pick(rng, ("sum", "sum", "presence", "log"))
    given["sample_total"] = pick(rng, (None, None, 1))
    given["min_samples"] = pick(rng, (None, None, 2, {modes[1]: 0.5}))
    tensor = call(LabelledTensor.from_frame, frame=frame, modes=modes, **given)
    with promised("table and back"):
        again = LabelledTensor.from_frame(tensor.to_frame(unused=True), modes=modes, value="value")
        turned = tensor.align({modes[0]: tensor.labels[0][::-1]})
        back = turned.align({modes[0]: tensor.labels[0]})
    close(again.data.toarray(), tensor.data.toarray(), 1e-6, "table and back")
    same_bits(back.data.toarray(), tensor.data.toarray(), "aligned and back")


def events(rng: Rng, call: Call) -> None:
    """Records become counts of pairs."""
    n = pick(rng, (1, 5, 30))

    def table(*codes: str) -> pd.DataFrame:
        who = {"patient": rng.integers(0, 4, n), "encounter": rng.integers(0, 6, n)}
        reasons = [pick(rng, ("J", "I", None)) for _ in range(n)]
        return pd.DataFrame({**who, "code": rng.choice(codes, n), "reason_code": reasons})

    found = call(
        *(io.tensor_from_events,),
        **{"medications": table("R", "C"), "diagnoses": table("J", "I"), "columns": None},
        **{"link": pick(rng, ("encounter", "reason")), "entries": pick(rng, ("sum", "presence"))},
        **{"min_patients": pick(rng, (None, 2, 0.5)), "max_codes": pick(rng, (None, 1))},
        **{"max_patients": pick(rng, (None, 3)), "patients": pick(rng, (None, None, [0, 1, 9]))},
    )
    demand((found.data.data >= 1).all(), "counts below one")


def tns(rng: Rng, call: Call) -> None:
    """A tensor comes back from its file; damaged files are refused."""
    shape, base = random_shape(rng), pick(rng, (0, 1))
    X = values(rng, shape).astype(float) * (rng.random(shape) < 0.5)
    tensor = summed(rng, X) if chance(rng, 0.5) else sparse.coo_array(X)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / pick(rng, ("a.tns", "a.tns.gz"))
        call(io.write_tns, path=path, tensor=tensor, index_base=base)
        text = bytearray(path.read_bytes())
        damages = pick(rng, (0, 0, 1, 10)) if text else 0
        for _ in range(damages):
            text[int(rng.integers(len(text)))] = pick(rng, b"0 9.-#e\n\t\xff\x00A")
        path.write_bytes(bytes(text))
        with judged("read_tns"):
            again = io.read_tns(path, shape=shape, index_base=base)
    if not damages:
        close(again.toarray(), tensor.toarray(), 1e-15, "a tensor from its file")


def generated(rng: Rng, call: Call) -> None:
    """Noise leaves entries alone, and random tensors are what they say."""
    given = {"shape": random_shape(rng), "random_state": 0}
    X = call(datasets.make_sparse, **given, n_draws=pick(rng, (1, 10)), skew=wild(rng, 0.0, 30.0))
    noisy = call(datasets.add_noise, X=X, p=pick(rng, (0.0, 0.5, 1.0)), random_state=0)
    kept = X.toarray() > 0
    same_bits(noisy.toarray()[kept], X.toarray()[kept], "entries that noise leaves alone")
    made = call(datasets.make_low_rank, **given, n_components=2, noise=wild(rng, 0.0, 1e3))
    finite(made[0], "make_low_rank")


def crowds(rng: Rng, call: Call) -> None:
    """A crowd is fitted or refused; probabilities are such, and a saved model gives the same."""
    shape = pick(rng, ((1, 1), (1, 4), (5, 1), (12, 5), (40, 9)))
    n_classes = pick(rng, (1, 2, 3, 7))
    X = rng.integers(n_classes, size=shape).astype(float)
    X[rng.random(shape) < pick(rng, (0.0, 0.3, 0.9))] = np.nan
    given: dict[str, Any] = {
        "init": pick(rng, ("majority", "majority", "moments", "power")),
        "variant": pick(rng, ("full", "one-coin")),
        "prior": pick(rng, ("auto", None, 0.0, wild(rng))),
        "n_init": pick(rng, (1, 2)),
        "max_iter": pick(rng, (1, 3, 20)),
        "tol": pick(rng, (0.0, 1e-7, 1.0)),
        "random_state": 0,
    }
    model = call(polyad.DawidSkene, **given)
    gold = {0: int(rng.integers(n_classes))} if chance(rng, 0.3) else None
    with judged("fit of a crowd"):
        model.fit(X, gold)
    for found in (model.probabilities_, model.confusion_, model.class_shares_):
        finite(found, "what was learned of a crowd")
        demand(bool((np.abs(found.sum(axis=-1) - 1) < 1e-6).all()), "probabilities sum to one")
    with promised("prediction of a crowd"), tempfile.TemporaryDirectory() as folder:
        before = model.predict_proba(X)
        finite(before, "predict_proba")
        finite(model.score(X), "score")
        model.save(Path(folder) / "model")
        same_bits(polyad.load(Path(folder) / "model").predict_proba(X), before, "a saved crowd")


CASES: tuple[Callable[[Rng, Call], None], ...] = (
    *(soft_operators, sinkhorn, soft_operators, distances, soft_operators, costs, measures),
    *(sinkhorn, evaluation, frames, soft_operators, events, tns, generated, ranks, crowds),
)

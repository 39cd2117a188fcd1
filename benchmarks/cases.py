"""What is measured: a function per case and library that makes a number of iterations.

Every library gets the same data and the same start, in the form it likes best, and two threads.
Imports are inside: each library runs in a process of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from benchmarks import (
    augmented,
    crowd,
    dictionary,
    matrices,
    membership,
    quantile,
    soft,
    swift,
    transport,
)

Run = Callable[[int], object]
DENSE_SIDE = 250
SPARSE_SHAPE = (2000, 1500, 1000)
GENERALIZED_SIDE = 200
BINARY_SHAPE = (10, 300, 250)


def random_factors(shape: tuple[int, ...], rank: int) -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.random((size, rank)) for size in shape]


def dense_data() -> np.ndarray:
    from polyad.datasets import make_low_rank

    return make_low_rank((DENSE_SIDE,) * 3, 16, noise=0.5, nonnegative=True, random_state=0)[0]


def nonnegative_data() -> np.ndarray:
    return np.abs(dense_data())


def sparse_data() -> Any:
    """Return about a million nonzeros whose indices follow a power law, with random values."""
    from polyad.datasets import make_sparse

    tensor = make_sparse(SPARSE_SHAPE, 1_040_000, skew=0.8, random_state=0)
    tensor.data = np.random.default_rng(2).random(tensor.nnz) + 0.5
    return tensor


def count_data() -> Any:
    """Return counts, about 200 thousand of them not zero, whose indices follow a power law."""
    from polyad.datasets import make_sparse

    tensor = make_sparse(SPARSE_SHAPE, 205_000, skew=0.8, random_state=0)
    tensor.data = np.random.default_rng(2).poisson(1.0, tensor.nnz) + 1.0
    return tensor


def positive_data(loss: str) -> np.ndarray:
    """Return entries of a positive model of rank ten, with the noise that a loss expects."""
    generator = np.random.default_rng(0)
    factors = [generator.random((GENERALIZED_SIDE, 10)) for _ in range(3)]
    mean = np.einsum("ir,jr,kr->ijk", *factors) / 5
    if loss == "gamma":
        return generator.gamma(2.0, mean / 2) + 1e-9
    return (generator.random(mean.shape) < mean / (1 + mean)).astype(float)


def polyad_generalized_run(data: np.ndarray, rank: int, *, loss: str) -> Run:
    from polyad import GeneralizedCP

    start = random_factors(data.shape, rank)

    def run(n_iter: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            GeneralizedCP(rank, loss=loss, init=start, max_iter=n_iter, tol=0, n_jobs=2).fit(data)

    return run


def binary_data(loss: str) -> Any:
    """Return few ones among zeros that are not stored, of a model of rank eight."""
    from scipy.sparse import coo_array

    generator = np.random.default_rng(0)
    model = np.einsum("ir,jr,kr->ijk", *_binary_factors(loss))
    odds = model if loss == "bernoulli-odds" else np.exp(model)
    return coo_array((generator.random(BINARY_SHAPE) < odds / (1 + odds)).astype(float))


def _binary_factors(loss: str) -> list[np.ndarray]:
    """Return factors of odds, or of their logarithms, at which a cell in a hundred is a one."""
    generator = np.random.default_rng(1)
    if loss == "bernoulli-odds":
        return [0.4 * generator.gamma(0.3, size=(n, 8)) for n in BINARY_SHAPE]
    factors = [0.8 * generator.standard_normal((n, 8)) for n in BINARY_SHAPE]
    for factor, level in zip(factors, (-6.0, 1.0, 1.0), strict=True):
        factor[:, 0] = level
    return factors


def polyad_binary_rows_run(
    data: Any, rank: int, *, loss: str, method: str = "transform", always_all: bool = False
) -> Run:
    """Return what is said of new samples on known components, with all zeros counted."""
    from polyad import GeneralizedCP
    from polyad.cp.generalized import rows

    if always_all:
        rows._MANY_CELLS = 10**12
    options = {"init": _binary_factors(loss), "max_iter": 1, "ridge": 0.01, "n_jobs": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GeneralizedCP(rank, loss=loss, fixed_modes=[1, 2], **options).fit(data)

    def run(n_iter: int) -> None:
        for _ in range(n_iter):
            getattr(model, method)(data)

    return run


def pyttb_generalized_run(data: np.ndarray, rank: int, *, loss: str) -> Run:
    import pyttb
    from pyttb.gcp.handles import Objectives
    from pyttb.gcp.optimizers import LBFGSB

    tensor, init = _pyttb_form(data, rank)
    objective = Objectives[loss.upper().replace("-", "_")]

    def run(n_iter: int) -> None:
        # No tolerance is ever reached.
        optimizer = LBFGSB(maxiter=n_iter, factr=0.0, pgtol=0.0)
        pyttb.gcp_opt(tensor, rank, objective, optimizer, init=init.copy(), printitn=0)

    return run


def polyad_run(data: Any, rank: int) -> Run:
    from polyad import CP

    start = random_factors(data.shape, rank)

    def run(n_iter: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return CP(rank, init=start, max_iter=n_iter, tol=0, n_jobs=2).fit(data).kruskal_

    return run


def polyad_nonnegative_run(data: np.ndarray, rank: int, *, solver: str) -> Run:
    from polyad import NonnegativeCP

    start = random_factors(data.shape, rank)

    def run(n_iter: int) -> Any:
        model = NonnegativeCP(rank, solver=solver, init=start, max_iter=n_iter, tol=0, n_jobs=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model.fit(data).kruskal_

    return run


def tensorly_nonnegative_run(data: np.ndarray, rank: int, *, solver: str) -> Run:
    from tensorly.cp_tensor import CPTensor
    from tensorly.decomposition import non_negative_parafac, non_negative_parafac_hals

    start = random_factors(data.shape, rank)
    fit = non_negative_parafac_hals if solver == "hals" else non_negative_parafac

    def run(n_iter: int) -> Any:
        init = CPTensor((np.ones(rank), [factor.copy() for factor in start]))
        return fit(data, rank, n_iter_max=n_iter, init=init, tol=1e-300)

    return run


def tensorly_run(data: np.ndarray, rank: int) -> Run:
    from tensorly.cp_tensor import CPTensor
    from tensorly.decomposition import parafac

    start = random_factors(data.shape, rank)

    def run(n_iter: int) -> Any:
        init = CPTensor((np.ones(rank), [factor.copy() for factor in start]))
        # With tol=0 it would skip the error that the others compute.
        return parafac(
            data, rank, n_iter_max=n_iter, init=init, tol=1e-300, normalize_factors=False
        )

    return run


def _pyttb_form(data: Any, rank: int) -> tuple[Any, Any]:
    import pyttb

    start = [np.asfortranarray(factor) for factor in random_factors(data.shape, rank)]
    init = pyttb.ktensor(start, np.ones(rank))
    if isinstance(data, np.ndarray):
        return pyttb.tensor(np.asfortranarray(data)), init
    subscripts = np.stack([np.asarray(row, dtype=np.int64) for row in data.coords], axis=1)
    return pyttb.sptensor(subscripts, data.data[:, None], shape=data.shape), init


def pyttb_run(data: Any, rank: int) -> Run:
    import pyttb

    tensor, init = _pyttb_form(data, rank)

    def run(n_iter: int) -> Any:
        model = pyttb.cp_als(tensor, rank, init=init, maxiters=n_iter, stoptol=-1, printitn=0)[0]
        return model.weights, model.factor_matrices

    return run


def polyad_poisson_run(data: Any, rank: int, *, solver: Literal["mu", "pdnr"] = "mu") -> Run:
    from polyad import PoissonCP

    start = random_factors(data.shape, rank)

    def run(n_iter: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            PoissonCP(
                rank, solver=solver, init=start, max_iter=n_iter, tol=0, inner_iter=10, n_jobs=2
            ).fit(data)

    return run


def pyttb_poisson_run(data: Any, rank: int) -> Run:
    import pyttb

    tensor, init = _pyttb_form(data, rank)

    def run(n_iter: int) -> None:
        # The same ten inner sweeps for every mode: no inner stop is ever reached.
        pyttb.cp_apr(
            tensor,
            rank,
            "mu",
            init=init.copy(),
            maxiters=n_iter,
            maxinneriters=10,
            stoptol=1e-300,
            printitn=0,
        )

    return run


def pygenten_run(data: Any, rank: int, *, method: str) -> Run:
    import pygenten

    tensor, init = _pyttb_form(data, rank)
    if not isinstance(data, np.ndarray):
        tensor = pygenten.make_gt_sptensor(tensor)
    variant = getattr(pygenten.MTTKRP_Method, method)

    def run(n_iter: int) -> None:
        # A tolerance of zero is refused.
        pygenten.cp_als(
            tensor,
            rank=rank,
            maxiters=n_iter,
            tol=1e-300,
            init=init,
            printitn=0,
            mttkrp_method=variant,
        )

    return run


def _genten(*variants: str) -> dict[str, Callable[[Any, int], Run]]:
    """Return variants of pygenten, each a method and an optional remark about its threads."""
    return {
        f"pygenten {variant}": partial(pygenten_run, method=variant.split(",")[0])
        for variant in variants
    }


#: For each case: the data, the rank, iterations per measurement, and the libraries.
CASES: dict[str, tuple[Callable[[], Any], int, int, dict[str, Callable[[Any, int], Run]]]] = {
    "dense CP-ALS 250x250x250, R=16": (
        dense_data,
        16,
        8,
        {
            "polyad": polyad_run,
            "tensorly": tensorly_run,
            "pyttb": pyttb_run,
            **_genten("MttkrpPhan", "MttkrpDefault"),
        },
    ),
    **{
        f"dense nonnegative CP ({solver}) 250x250x250, R=16": (
            nonnegative_data,
            16,
            8,
            {
                "polyad": partial(polyad_nonnegative_run, solver=solver),
                "tensorly": partial(tensorly_nonnegative_run, solver=solver),
            },
        )
        for solver in ("hals", "mu")
    },
    **{
        f"sparse CP-ALS 2000x1500x1000, 1M nonzeros, R={rank}": (
            sparse_data,
            rank,
            n_iter,
            {
                "polyad": polyad_run,
                "pyttb": pyttb_run,
                # With two threads, MttkrpSingle loses updates and ends at another fit.
                **_genten(
                    "MttkrpAtomic", "MttkrpDuplicated", "MttkrpPerm", "MttkrpSingle, 1 thread"
                ),
            },
        )
        for rank, n_iter in ((16, 10), (40, 6))
    },
    **{
        f"dense GCP ({loss}, L-BFGS) 200x200x200, R=10": (
            partial(positive_data, loss),
            10,
            10,
            {
                "polyad": partial(polyad_generalized_run, loss=loss),
                "pyttb": partial(pyttb_generalized_run, loss=loss),
            },
        )
        for loss in ("bernoulli-odds", "bernoulli-logit", "gamma")
    },
    **{
        f"{title} of binary data ({loss}) 10x300x250, R=8": (
            partial(binary_data, loss),
            8,
            1,
            {
                "polyad": partial(polyad_binary_rows_run, loss=loss, method=method),
                "polyad, all cells in each step": partial(
                    polyad_binary_rows_run, loss=loss, method=method, always_all=True
                ),
            },
        )
        for loss in ("bernoulli-odds", "bernoulli-logit")
        for title, method in (("features", "transform"), ("score", "score"))
    },
    "sparse CP-APR 2000x1500x1000, 200k nonzeros, R=10": (
        count_data,
        10,
        10,
        {
            "polyad": polyad_poisson_run,
            "polyad, Newton rows": partial(polyad_poisson_run, solver="pdnr"),
            "pyttb": pyttb_poisson_run,
        },
    ),
    **{
        title: (matrices.topics, matrices.RANK, 10, libraries)
        for title, libraries in matrices.CASES.items()
    },
    **{
        f"transport of {n} fibres of {size}, {nonzeros} nonzeros, {dtype.__name__}": (
            partial(transport.problem, size, n, nonzeros, dtype),
            nonzeros,
            4,
            transport.LIBRARIES,
        )
        for size, n, nonzeros in transport.SHAPES
        for dtype in (np.float64, np.float32)
    },
    **{
        soft.title(*operation, with_gradient=with_gradient): (
            partial(soft.problem, *operation, with_gradient=with_gradient),
            operation[0][2],
            4,
            soft.libraries(*operation[:2], with_gradient=with_gradient),
        )
        for operation in soft.OPERATIONS
        for with_gradient in (False, True)
    },
    **{
        quantile.title(*shape): (
            partial(quantile.problem, *shape),
            quantile.RANK,
            4,
            quantile.LIBRARIES,
        )
        for shape in quantile.SHAPES
    },
    **{
        quantile.race_title(rank): (
            partial(quantile.race_problem, rank),
            rank,
            1,
            quantile.RACERS,
        )
        for rank in quantile.RACE_RANKS
    },
    **{
        title: (partial(membership.problem, *membership.SHAPE), membership.RANK, 1, libraries)
        for title, libraries in membership.CASES.items()
    },
    **dictionary.CASES,
    **{
        title: (make, augmented.RANK, 2, libraries)
        for title, (make, libraries) in augmented.CASES.items()
    },
    **{
        crowd.title(*shape): (partial(crowd.problem, *shape), shape[2], 5, crowd.LIBRARIES)
        for shape in crowd.SHAPES
    },
    "SWIFT 1000x100x100, 100k nonzeros, R=40": (
        partial(swift.problem, (1000, 100, 100), 100_000),
        40,
        3,
        {
            "polyad": swift.polyad_run,
            "polyad, float32": partial(swift.polyad_run, dtype=np.float32),
            "polyad, two sweeps": partial(swift.polyad_run, inner_iter=2),
            "published, NumPy": partial(swift.reference_run, name="published_iteration"),
        },
    ),
    # As large as BBC News, and about the largest for which the direct method has 16 GB.
    "SWIFT 240x100x100, 10k nonzeros, R=40": (
        partial(swift.problem, (240, 100, 100), 10_000),
        40,
        10,
        {
            "polyad": swift.polyad_run,
            "published, NumPy": partial(swift.reference_run, name="published_iteration"),
            "direct, NumPy": partial(swift.reference_run, name="direct_iteration"),
        },
    ),
    # Of the size of a ward: 25 diagnoses and 25 drugs of each of 100 patients.
    "SWIFT to an objective, 100x600x600, 75k nonzeros, R=10": (
        partial(swift.records, (100, 600, 600), 60_000),
        10,
        1,
        {
            "polyad": swift.race_run,
            "plain alternation": partial(swift.race_run, plain=True),
            "PoissonCP, a fit": swift.poisson_run,
        },
    ),
}

#: What takes minutes, by the beginning of the case and of the library.
LONG = (
    ("soft: normalize, 2000 rows", "OTT"),
    ("soft: normalize and gradient, 2000 rows", "OTT"),
    ("soft: soft_rank and gradient", "OTT"),
    ("soft: soft_sort and gradient", "OTT"),
    (quantile.race_title(10), "Adam"),
    ("SWIFT 1000x100x100", "published"),
    ("SWIFT 240x100x100", "direct"),
    ("race: GCP of binary data", "pygenten"),
)


def is_long(case: str, library: str) -> bool:
    """Tell whether a library takes minutes for a case."""
    return any(case.startswith(known) and library.startswith(name) for known, name in LONG)

"""One batch against a plain NumPy twin, the graph against its normal equations."""

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array

from polyad import CP, StochasticCP
from polyad.cp.problem import build_problem
from polyad.cp.stochastic.graph import GraphRows, coupled_rows, read_graph
from polyad.cp.stochastic.solver import BatchedData, Settings, StochasticSolver, SweepState
from polyad.data.batches import MemorySource
from polyad.data.validation import as_tensor_input
from polyad.datasets import make_low_rank

RIDGE = 0.3
X = make_low_rank((12, 6, 5), 3, noise=0.3, random_state=0)[0]
generator = np.random.default_rng(1)
B, C = generator.standard_normal((6, 3)), generator.standard_normal((5, 3))


def twin(batch, b, c, rate):
    """Solve for the rows, then move each factor towards its ridge solution."""
    eye = RIDGE * np.eye(3)
    rows = np.einsum("nij,ir,jr->nr", batch, b, c) @ np.linalg.inv((b.T @ b) * (c.T @ c) + eye)
    error = batch - np.einsum("nr,ir,jr->nij", rows, b, c)
    loss = 0.5 * np.sum(error**2) + 0.5 * RIDGE * sum(np.sum(a * a) for a in (rows, b, c))
    target = np.einsum("nij,nr,jr->ir", batch, rows, c)
    b = (1 - rate) * b + rate * target @ np.linalg.inv((rows.T @ rows) * (c.T @ c) + eye)
    target = np.einsum("nij,nr,ir->jr", batch, rows, b)
    c = (1 - rate) * c + rate * target @ np.linalg.inv((rows.T @ rows) * (b.T @ b) + eye)
    lengths = [np.linalg.norm(a, axis=0) for a in (rows, b, c)]
    common = np.prod(lengths, axis=0) ** (1 / 3)
    return rows, loss, b * common / lengths[1], c * common / lengths[2]


def solver_of(data, missing="zero", **settings):
    source = MemorySource(as_tensor_input(data, allow_nan=True), 100)
    problem = BatchedData(source, missing, source.first_informative())
    return StochasticSolver(problem, Settings(ridge=RIDGE, **settings)), next(source.sweep())


@pytest.mark.parametrize("rate", [1.0, 0.25])
@pytest.mark.parametrize(
    ("container", "missing"),
    [(np.asarray, "zero"), (coo_array, "zero"), (coo_array, "unobserved")],
)
def test_one_batch_is_that_of_the_twin(container, missing, rate):
    solver, batch = solver_of(container(X), missing, rate=rate)
    # So many steps that the average no longer feels its start.
    state = SweepState([B, C], 10_000, 0, 0, 12, 0.0)
    rows, loss, after = solver.take_batch(state, batch)
    expected = twin(X, B, C, rate)
    lengths = np.linalg.norm(B, axis=0) * np.linalg.norm(C, axis=0)
    np.testing.assert_allclose(rows, expected[0] * lengths, atol=1e-12)
    assert loss == pytest.approx(expected[1], rel=1e-12)
    np.testing.assert_allclose(after.factors[0], expected[2], atol=1e-12)
    np.testing.assert_allclose(after.factors[1], expected[3], atol=1e-12)
    assert after.n_steps == 10_001


def test_a_mask_of_ones_changes_nothing_but_the_way():
    from polyad.cp.problem import ObservedDense

    solver, batch = solver_of(X, rate=0.25)
    state = SweepState([B, C], 10_000, 0, 0, 12, 0.0)
    plain = solver.take_batch(state, batch)
    solver.problem.problem_of = lambda _: ObservedDense(X, np.ones(X.shape, bool))
    masked = solver.take_batch(state, batch)
    for one, other in zip(plain[2].factors, masked[2].factors, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)


@pytest.mark.parametrize("container", [np.asarray, coo_array])
def test_rows_that_a_batch_does_not_see_stay(container):
    holed = X.copy()
    holed[:, 2] = np.nan
    if container is coo_array:
        where = np.nonzero(~np.isnan(holed))
        data, missing = coo_array((holed[where], where), shape=X.shape), "unobserved"
    else:
        data, missing = holed, "zero"
    # With hardly any rate all rows stay, up to the balance of the columns.
    solver, batch = solver_of(data, missing, rate=1e-12)
    after = solver.take_batch(SweepState([B, C], 10**15, 0, 0, 12, 0.0), batch)[2]
    np.testing.assert_allclose(after.factors[0] / after.factors[0][0], B / B[0], rtol=1e-6)
    # With a rate, the other rows move as if the unseen one did not exist.
    solver, batch = solver_of(data, missing, rate=0.5)
    after = solver.take_batch(SweepState([B, C], 50, 0, 0, 12, 0.0), batch)[2]
    without, small = solver_of(np.delete(X, 2, axis=1), rate=0.5)
    rest = without.take_batch(SweepState([np.delete(B, 2, 0), C], 50, 0, 0, 12, 0.0), small)[2]
    moved = np.delete(after.factors[0], 2, 0)
    np.testing.assert_allclose(moved / moved[0], rest.factors[0] / rest.factors[0][0], rtol=1e-6)


def test_a_batch_of_zeros_moves_nothing():
    solver, batch = solver_of(np.zeros_like(X), rate=0.5)
    rows, loss, after = solver.take_batch(SweepState([B, C], 5, 0, 0, 12, 0.0), batch)
    assert np.array_equal(after.factors[0], B)
    assert not rows.any()
    assert after.n_steps == 5
    assert loss == pytest.approx(0.5 * RIDGE * (np.sum(B**2) + np.sum(C**2)))


def test_a_small_batch_moves_the_factors_in_proportion():
    solver, batch = solver_of(X, rate=0.5)
    whole = solver.take_batch(SweepState([B, C], 10_000, 0, 0, 12, 0.0), batch)[2]
    solver, batch = solver_of(X, rate=1.0)
    part = solver.take_batch(SweepState([B, C], 10_000, 0, 0, 24, 0.0), batch)[2]
    np.testing.assert_allclose(whole.factors[0], part.factors[0], atol=1e-12)
    assert part.largest == 24


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rate": 0.1}, [1, 0.1 / 0.19, 0.1 / (1 - 0.9**3)]),
        ({"rate": 1.0}, [1, 1, 1]),
        ({"rate": 1e-300}, [1, 1 / 2, 1 / 3]),
        ({}, [1, 2**-0.5, 3**-0.5]),
        ({"n_batches": 2}, [1, 1, 1]),
        ({"n_batches": 3}, [1, 2**-0.5, 2 / 3]),
    ],
)
def test_rates(settings, expected):
    solver, _ = solver_of(X, **settings)
    assert [solver.rate(t) for t in (1, 2, 3)] == pytest.approx(expected)


def test_a_rate_averages_without_the_start():
    """The weights of the minimisers after t steps are those of an exponential average."""
    solver, _ = solver_of(X, rate=0.2)
    weights = np.zeros(0)
    for t in range(1, 8):
        rate = solver.rate(t)
        weights = np.append(weights * (1 - rate), rate)
    expected = 0.8 ** np.arange(6, -1, -1)
    np.testing.assert_allclose(weights, expected / expected.sum())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_one_batch_of_everything_is_alternating_least_squares():
    start = [np.zeros((12, 3)), B, C]
    rows = build_problem(X, "zero").minimizer(start, 0, GraphRows(0.0, 0.0, np.eye(12), one_step=0))
    ours = StochasticCP(3, init=start, learning_rate=1.0, ridge=0, max_iter=7, tol=0).fit(X)
    theirs = CP(3, init=[rows, B, C], max_iter=7, tol=0).fit(X)
    np.testing.assert_allclose(ours.kruskal_.to_dense(), theirs.kruskal_.to_dense(), atol=1e-9)


# The graph.

SIMILARITY = np.abs(generator.standard_normal((12, 12)))
SIMILARITY = (SIMILARITY + SIMILARITY.T) * (generator.random((12, 12)) < 0.5)
SIMILARITY = np.triu(SIMILARITY, 1) + np.triu(SIMILARITY, 1).T


def exact_rows(normal, rhs, matrix, weight):
    """Solve the normal equations of all rows at once, as one large system."""
    n, rank = rhs.shape
    system = np.kron(weight * matrix, np.eye(rank))
    for i in range(n):
        system[i * rank : (i + 1) * rank, i * rank : (i + 1) * rank] += normal[i]
    return np.linalg.solve(system, rhs.ravel()).reshape(n, rank)


def laplacian(similarity):
    return np.diag(similarity.sum(axis=1)) - similarity


def test_rows_under_a_graph_solve_their_sylvester_equation():
    matrix = laplacian(SIMILARITY)
    q = (B.T @ B) * (C.T @ C)
    rhs = np.einsum("nij,ir,jr->nr", X, B, C)
    rows = GraphRows(RIDGE, 0.7, matrix, one_step=False).solve(q, rhs, None, 0)
    np.testing.assert_allclose(
        rows @ (q + RIDGE * np.eye(3)) + 0.7 * matrix @ rows, rhs, atol=1e-10
    )
    expected = exact_rows([q + RIDGE * np.eye(3)] * 12, rhs, matrix, 0.7)
    np.testing.assert_allclose(rows, expected, atol=1e-11)


def test_rows_of_large_batches_are_solved_for_by_steps(monkeypatch):
    matrix = laplacian(SIMILARITY)
    q = (B.T @ B) * (C.T @ C)
    rhs = np.einsum("nij,ir,jr->nr", X, B, C)
    rules = [GraphRows(r, 0.7, matrix, one_step=False) for r in (RIDGE, 0.0)]
    direct = [rule.solve(q, rhs, None, 0) for rule in rules]
    monkeypatch.setattr("polyad.cp.stochastic.graph._MOST_EIGENVECTORS", 5)
    stepwise = [rule.solve(q, rhs, None, 0) for rule in rules]
    np.testing.assert_allclose(direct, stepwise, atol=1e-9)


def test_rows_with_matrices_of_their_own():
    parts = generator.standard_normal((12, 4, 3))
    normal = np.einsum("nkr,nks->nrs", parts, parts) + 0.1 * np.eye(3)
    rhs = generator.standard_normal((12, 3))
    for weight in (0.0, 0.5, 1e4):
        coupling = weight * laplacian(SIMILARITY)
        expected = exact_rows(normal, rhs, coupling, 1.0)
        np.testing.assert_allclose(coupled_rows(normal, rhs, coupling), expected, atol=1e-9)
    assert not coupled_rows(normal, np.zeros((12, 3)), coupling).any()


@pytest.mark.parametrize("graph", [SIMILARITY, csr_array(SIMILARITY), "complete"])
@pytest.mark.parametrize("missing", ["none", "dense", "sparse"])
def test_the_objective_of_a_batch_is_at_its_minimum(graph, missing):
    """No nearby rows are better, with and without missing entries."""
    matrix = np.eye(12) - 1 / 12 if isinstance(graph, str) else laplacian(SIMILARITY)
    data, observed = X, np.ones(X.shape, bool)
    if missing != "none":
        observed = np.random.default_rng(3).random(X.shape) < 0.7
        observed[4] = False
        seen = np.arange(12) != 4
        if isinstance(graph, str):
            matrix = np.zeros((12, 12))
            matrix[np.ix_(seen, seen)] = np.eye(11) - 1 / 11
        else:
            matrix = laplacian(SIMILARITY * seen * seen[:, None])
        data = np.where(observed, X, np.nan)
        if missing == "sparse":
            where = np.nonzero(observed)
            data = coo_array((X[where], where), shape=X.shape)
    settings = {"graph": read_graph(graph, 12), "graph_weight": 0.7, "shuffle": False}
    solver, batch = solver_of(data, "unobserved" if missing == "sparse" else "zero", **settings)
    rows, loss, _ = solver.take_batch(SweepState([B, C], 1, 0, 0, 12, 0.0), batch)
    rows = rows / (np.linalg.norm(B, axis=0) * np.linalg.norm(C, axis=0))

    def objective(rows):
        error = np.where(observed, X - np.einsum("nr,ir,jr->nij", rows, B, C), 0)
        ridge = RIDGE * (np.sum(rows**2) + np.sum(B**2) + np.sum(C**2))
        return 0.5 * (np.sum(error**2) + ridge + 0.7 * np.trace(rows.T @ matrix @ rows))

    assert loss == pytest.approx(objective(rows), rel=1e-10)
    draws = np.random.default_rng(4)
    for _ in range(20):
        step = 1e-3 * draws.standard_normal(rows.shape)
        step[4] *= missing == "none"
        slope = (objective(rows + step) - objective(rows - step)) / 2
        assert abs(slope) < 1e-8
        assert objective(rows + step) > loss


def test_the_published_rule_is_one_fixed_point_step():
    n = 12
    matrix = 100 * ((1 / n + 0.01) * np.eye(n) - np.ones((n, n)) / n)
    inverse = np.linalg.inv((B.T @ B) * (C.T @ C) + RIDGE * np.eye(3))
    rhs = np.einsum("nij,ir,jr->nr", X, B, C)
    expected = (rhs - 0.1 * matrix @ (rhs @ inverse)) @ inverse
    solver, batch = solver_of(X, graph=read_graph("published", None), graph_weight=0.1)
    rows = solver.take_batch(SweepState([B, C], 1, 0, 0, 12, 0.0), batch)[0]
    lengths = np.linalg.norm(B, axis=0) * np.linalg.norm(C, axis=0)
    np.testing.assert_allclose(rows, expected * lengths, atol=1e-10)
    assert np.linalg.eigvalsh(matrix).min() < 0  # why there is no minimum to go to


def test_random_batches_see_the_whole_graph_on_average():
    graph = read_graph(SIMILARITY, 12)
    rows = generator.standard_normal((12, 3))
    whole = np.trace(rows.T @ laplacian(SIMILARITY) @ rows)
    sums = []
    for seed in range(400):
        order = np.random.default_rng(seed).permutation(12)
        batches = [np.sort(order[k : k + 4]) for k in (0, 4, 8)]
        sums.append(
            sum(np.trace(rows[b].T @ graph.matrix(b, is_random=True) @ rows[b]) for b in batches)
        )
    assert np.mean(sums) == pytest.approx(whole, rel=4 * np.std(sums) / 400**0.5 / whole)
    whole_batch = graph.matrix(np.arange(12), is_random=True)
    np.testing.assert_allclose(whole_batch, laplacian(SIMILARITY))

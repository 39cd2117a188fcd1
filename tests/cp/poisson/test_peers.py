"""The same numbers as pyttb, where it computes what the papers say."""

import numpy as np
import pytest

from polyad import KruskalTensor, PoissonCP
from tests.cp.poisson.reference import divergence

pyttb = pytest.importorskip("pyttb")
RANK = 2


@pytest.fixture(scope="module")
def example():
    generator = np.random.default_rng(0)
    truth = [generator.gamma(1.0, 1.0, (n, RANK)) for n in (8, 7, 6)]
    X = generator.poisson(50 * KruskalTensor(np.ones(RANK), truth).to_dense()).astype(float)
    return X, [generator.uniform(0.1, 1.0, (n, RANK)) for n in X.shape]


def by_pyttb(X, start, method, **options):
    """Return pyttb's model. It begins with mode 0, we end with it: its modes are turned."""
    turned = pyttb.tensor(np.asfortranarray(np.transpose(X, (1, 2, 0))))
    factors = [np.asfortranarray(start[k]) for k in (1, 2, 0)]
    init = pyttb.ktensor(factors, np.ones(RANK))
    model, _, _ = pyttb.cp_apr(turned, RANK, method, init=init, printitn=0, **options)
    return np.transpose(model.full().data, (2, 0, 1))


def last_model(X, start, **options):
    """Return the model of the last iteration, before the rows of the samples are solved."""
    states = []
    model = PoissonCP(RANK, init=start, callbacks=lambda it: states.append(it.state), **options)
    model.fit(X)
    return KruskalTensor(states[-1].weights, states[-1].factors).to_dense(), model


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_iter", [1, 5, 20])
@pytest.mark.parametrize("inner", [1, 5])
def test_same_iterates_of_multiplicative_updates(example, n_iter, inner):
    X, start = example
    # kappa=0: pyttb 1.8 lifts small entries wherever Phi > 0, the paper (and we) where Phi > 1.
    options = {"stoptol": 1e-300, "maxiters": n_iter, "maxinneriters": inner, "kappa": 0.0}
    theirs = by_pyttb(X, start, "mu", **options)
    ours, model = last_model(X, start, max_iter=n_iter, tol=0, inner_iter=inner)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    last = model.history_.objective[-1]
    assert last == pytest.approx(divergence(X, theirs), rel=1e-9)
    assert model.objective_ <= last


def test_same_result_of_newton_rows(example):
    X, start = example
    options = {"stoptol": 1e-8, "maxiters": 300, "maxinneriters": 20}
    theirs = divergence(X, by_pyttb(X, start, "pdnr", **options))
    for solver in ("pdnr", "mu"):
        ours = PoissonCP(RANK, solver=solver, init=start, tol=1e-13, max_iter=3000).fit(X)
        assert ours.objective_ == pytest.approx(theirs, rel=1e-6)

"""Data that each loss accepts, and a NumPy twin of the objective."""

import numpy as np

from polyad import KruskalTensor
from polyad.losses import CustomLoss
from polyad.losses.names import LOSSES, read_loss

COSH = CustomLoss(
    lambda x, m: np.cosh(m - x) - 1,
    lambda x, m: np.sinh(m - x),
    curvature=lambda x, m: np.cosh(m - x),
)
LOSS = {**{name: read_loss(name) for name in LOSSES}, "custom": COSH}
NAMES = list(LOSS)
TAKES_ZERO = [name for name, loss in LOSS.items() if loss.accepts(np.zeros(1))[0]]


def data_for(name, shape=(6, 5, 4), seed=0):
    """Return noise that the loss accepts."""
    generator = np.random.default_rng(seed)
    counts = generator.poisson(1.5, shape).astype(float)
    if name.startswith("bernoulli"):
        return (counts > 1).astype(float)
    if name in ("gamma", "rayleigh"):
        return counts + 0.5
    return counts - 1.0 if name in ("gaussian", "huber", "custom") else counts


def factors_for(name, shape=(6, 5, 4), rank=3, seed=1):
    generator = np.random.default_rng(seed)
    if LOSS[name].lower == 0:
        return [generator.uniform(0.2, 1.0, (n, rank)) for n in shape]
    return [generator.standard_normal((n, rank)) for n in shape]


def planted(name, shape=(20, 15, 12), rank=3, seed=0):
    """Return data without noise and the model that it comes from."""
    generator = np.random.default_rng(seed)
    if LOSS[name].lower == 0:
        factors = [generator.uniform(0.05, 1.0, (n, rank)) ** 2 for n in shape]
    else:
        factors = [0.7 * generator.standard_normal((n, rank)) for n in shape]
    truth = KruskalTensor(np.ones(rank), factors)
    data = LOSS[name].mean(truth.to_dense())
    # The best model value of a Rayleigh entry is not the entry.
    return (data * 2 / np.sqrt(np.pi) if name == "rayleigh" else data), truth


def twin(loss, X, factors, observed=None):
    """Return the sum of the loss and its gradients, by einsum over the whole tensor."""
    letters = "abcdefg"[: X.ndim]
    M = np.einsum(",".join(f"{c}r" for c in letters) + "->" + letters, *factors)
    counts = np.ones(X.shape, bool) if observed is None else observed
    slope = np.where(counts, loss.derivative(X, M), 0.0)
    gradients = []
    for k, own in enumerate(letters):
        others = [f"{c}r" for c in letters if c != own]
        matrices = [factor for j, factor in enumerate(factors) if j != k]
        gradients.append(np.einsum(f"{letters},{','.join(others)}->{own}r", slope, *matrices))
    return float(np.sum(loss.value(X, M)[counts])), gradients

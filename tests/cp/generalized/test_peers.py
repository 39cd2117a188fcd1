"""Agreement with pyttb.

Oracle values of pyttb 1.8.6: ``fg.evaluate(start, X, None, f, g)`` of ``pyttb.gcp`` with the
handles of each objective (Huber threshold 0.25, negative binomial with 2 trials, beta 0.5), and
``gcp_opt(X, 2, objective, LBFGSB(maxiter=5000, factr=10, pgtol=1e-9), init=start)``.
"""

import numpy as np
import pytest

from polyad import GeneralizedCP
from polyad.cp.generalized.problem import build_problem
from polyad.data.validation import as_tensor_input
from polyad.losses import BetaDivergenceLoss, HuberLoss, NegativeBinomialLoss
from polyad.losses.names import read_loss

SHAPE = (5, 4, 3)
WAVE = np.sin(1.0 + 1.7 * np.arange(60.0).reshape(SHAPE))
COUNTS = np.floor(2.5 * (1 + WAVE))
BINARY = (WAVE > 0.1).astype(float)
START = [
    0.6 + 0.4 * np.cos(0.5 + 1.3 * np.arange(2 * n).reshape(n, 2) + mode)
    for mode, n in enumerate(SHAPE)
]
LOSS = {
    "huber": HuberLoss(0.25),
    "negative-binomial": NegativeBinomialLoss(2.0),
    "beta": BetaDivergenceLoss(0.5),
}
DATA = {
    **{"gaussian": 2 * WAVE, "huber": 2 * WAVE, "gamma": 1.2 + WAVE, "rayleigh": 1.2 + WAVE},
    **{"poisson": COUNTS, "poisson-log": COUNTS, "negative-binomial": COUNTS, "beta": COUNTS},
    **{"bernoulli-odds": BINARY, "bernoulli-logit": BINARY},
}
# The objective at the start and the sums of its gradients in the three factors. pyttb's gradient of
# the negative binomial is not that of its objective.
AT_START = {
    "gaussian": (128.03771854915607, [26.4987682877, 33.9560333234, 31.9757047745]),
    "huber": (35.08895726388027, [3.2647905477, 3.3134498582, 3.8851611508]),
    "poisson": (179.51349709835165, [-206.8931805543, -222.8312505422, -245.9236907695]),
    "poisson-log": (44.04477316142646, [-14.5219320597, -14.4699695122, -16.8966911283]),
    "negative-binomial": (228.2294675242046, None),
    "bernoulli-odds": (52.88230762685735, [-30.3184743682, -33.0016394384, -35.7258755918]),
    "bernoulli-logit": (43.081820214206495, [4.4427902666, 5.1961475842, 5.5138156623]),
    "gamma": (277.8371058895435, [-768.9143229518, -765.0361569855, -866.2689547673]),
    "rayleigh": (3786.5180688283, [-23507.266604437, -22630.4410559975, -25063.119034749]),
    "beta": (571.0843435540336, [-494.1774620326, -516.0505520658, -584.4885824851]),
}
# The objective at the end. Two losses are left out, of which the fits end in different valleys.
AT_END = {
    "gaussian": 13.600539595190885,
    "huber": 4.58342413517996,
    "poisson": 30.007002338128448,
    "bernoulli-odds": 30.682138248344604,
    "gamma": 69.51242659246917,
    "rayleigh": 79.89575430520051,
    "beta": 338.9904483726435,
}


def in_their_form(name, value):
    """Turn a sum of losses into pyttb's, which keeps other constants and counts squares whole."""
    X, loss = DATA[name], LOSS.get(name, read_loss(name))
    if name in ("gaussian", "huber"):
        return 2 * value
    if name == "gamma":
        return value + np.sum(1 + np.log(X))
    if name == "rayleigh":
        return value + np.sum(1 + np.log(np.pi / 4) + 2 * np.log(X))
    return value - np.sum(loss.offset(X))


@pytest.mark.parametrize("name", AT_START)
def test_objective_and_gradient(name):
    expected, sums = AT_START[name]
    loss = LOSS.get(name, read_loss(name))
    value, gradients = build_problem(as_tensor_input(DATA[name]), "zero", loss).evaluate(START)
    assert in_their_form(name, value) == pytest.approx(expected, rel=1e-8)
    if sums is not None:
        scale = 2 if name in ("gaussian", "huber") else 1
        own = [scale * gradient.sum() for gradient in gradients]
        np.testing.assert_allclose(own, sums, rtol=1e-7)


@pytest.mark.parametrize("name", AT_END)
def test_the_end_is_no_worse(name):
    loss = LOSS.get(name, name)
    model = GeneralizedCP(2, loss=loss, init=START, tol=1e-9, max_iter=1500).fit(DATA[name])
    end = in_their_form(name, model.objective_)
    assert end <= AT_END[name] * (1 + 1e-3)
    # The same valley, but for Rayleigh, whose fit ends in a deeper one.
    assert end == pytest.approx(AT_END[name], rel=1e-2 if name == "rayleigh" else 1e-3)

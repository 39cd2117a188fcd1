"""What tells one fit from another."""

import dataclasses
import functools
import sys
import threading
import types

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import coo_array, csr_array

from polyad import KruskalTensor
from polyad.exceptions import CheckpointError
from polyad.fitting.identity import digest_of, fit_identity, identify
from polyad.losses import CustomLoss, HuberLoss

SCALE = 2.0


def square(x, m):
    return (m - x) ** 2


def scaled(x, m):
    return SCALE * square(x, m)


def times(factor):
    return lambda x, m: factor * square(x, m)


def with_inner(x, m):
    return [SCALE * value for value in (x, m)]


class Plain:
    power = 2

    def __init__(self, weight):
        self.weight = weight

    def value(self, x, y):
        return self.weight * (x - y) ** self.power


class Slots:
    __slots__ = ("weight",)

    def __init__(self, weight):
        self.weight = weight


@dataclasses.dataclass(frozen=True)
class Fields:
    weight: object


def circle():
    one, other = Plain(1.0), Plain(2.0)
    one.other, other.other = other, one
    return one


VALUES = np.arange(6.0)

# Each makes a value anew; all of them are different.
DIFFERENT = [
    lambda: VALUES,
    lambda: VALUES.reshape(2, 3),
    lambda: VALUES.astype(np.float32),
    lambda: VALUES[:5],
    lambda: -VALUES,
    lambda: [VALUES, VALUES],
    lambda: (VALUES, -VALUES),
    lambda: np.zeros(0),
    lambda: np.zeros((0, 2)),
    lambda: np.array(1.0),
    lambda: np.array(["a", "b"]),
    lambda: np.array(["a", "b"], dtype=object),
    lambda: np.array(["a", None], dtype=object),
    lambda: np.array(["2020-01-01"], dtype="datetime64[D]"),
    lambda: torch.asarray(VALUES[:4]),
    lambda: csr_array(np.eye(3)),
    lambda: csr_array(2 * np.eye(3)),
    lambda: coo_array(np.eye(3)[None]),
    lambda: pd.DataFrame(np.eye(2), index=["a", "b"]),
    lambda: pd.DataFrame(np.eye(2), index=["b", "a"]),
    lambda: pd.DataFrame(np.eye(2), columns=["b", "a"]),
    lambda: pd.Series([1.0, 0.0], name="y"),
    lambda: KruskalTensor(np.ones(2), [np.ones((3, 2)), np.ones((2, 2))]),
    lambda: KruskalTensor(np.ones(2), [np.ones((3, 2)), np.zeros((2, 2))]),
    lambda: {"a": 1, "b": VALUES},
    lambda: {"a": 1, "b": -VALUES},
    lambda: {0: "cosine"},
    lambda: {1, 2},
    lambda: range(3),
    lambda: float("nan"),
    lambda: b"bytes",
    lambda: np.random.RandomState(0),
    lambda: np.random.RandomState(1),
    lambda: np.random.default_rng(0),
    lambda: np.random.default_rng(1),
    lambda: square,
    lambda: scaled,
    lambda: times(2.0),
    lambda: times(3.0),
    lambda: times(VALUES),
    lambda: lambda x, m, power=2: (m - x) ** power,
    lambda: lambda x, m, power=3: (m - x) ** power,
    lambda: lambda x, m, *, power=3: (m - x) ** power,
    lambda: functools.partial(square, 1.0),
    lambda: functools.partial(square, 2.0),
    lambda: np.exp,
    lambda: np.sum,
    lambda: len,
    lambda: Plain,
    lambda: Plain(1.0),
    lambda: Plain(2.0),
    lambda: Plain(VALUES),
    lambda: Plain(1.0).value,
    lambda: Slots(1.0),
    lambda: Slots(2.0),
    lambda: Fields(1.0),
    lambda: Fields(Fields(1.0)),
    circle,
    lambda: HuberLoss(1.0),
    lambda: HuberLoss(2.0),
    lambda: CustomLoss(square, scaled),
    lambda: CustomLoss(scaled, square),
    lambda: CustomLoss(square, scaled, lower=0.0),
    lambda: CustomLoss(square, scaled, mean=square),
]


def test_different_values_have_different_names_and_equal_ones_the_same():
    names = [identify(make(), "value") for make in DIFFERENT]
    assert len(set(names)) == len(names)
    assert names == [identify(make(), "value") for make in DIFFERENT]


@pytest.mark.parametrize("value", [None, True, 3, 0.5, "cosine", [1, "a"], float("inf")])
def test_numbers_and_names_stand_for_themselves(value):
    assert identify(value, "value") == value


def test_numbers_of_numpy_are_numbers():
    assert identify(np.float64(0.5), "value") == 0.5
    assert identify((np.int64(1), 2.0), "value") == [1, 2]
    assert digest_of([np.float64(0.5)]) == digest_of([0.5])


def test_a_generator_that_was_used_is_another():
    generator = np.random.RandomState(0)
    before = identify(generator, "random_state")
    generator.random()
    assert identify(generator, "random_state") != before


@pytest.mark.parametrize("function", [scaled, with_inner])
def test_what_a_function_uses_around_it_counts(function, monkeypatch):
    before = identify(function, "loss")
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    assert identify(function, "loss") != before


def test_what_a_function_takes_from_a_module_of_the_user_counts(monkeypatch):
    own = types.ModuleType("own_settings")
    own.scale, own.lock = 2.0, threading.Lock()
    source = {"own": own}
    exec("def function(x, m): return own.scale * (m - x)", source)
    before = identify(source["function"], "loss")
    own.scale = 3.0
    assert identify(source["function"], "loss") != before


def test_the_code_of_a_class_counts(monkeypatch):
    before = identify(Plain(1.0), "divergence")
    monkeypatch.setattr(Plain, "value", lambda self, x, y: self.weight * abs(x - y))
    changed = identify(Plain(1.0), "divergence")
    monkeypatch.undo()
    monkeypatch.setattr(Plain, "power", 3)
    assert len({before, changed, identify(Plain(1.0), "divergence")}) == 3


@pytest.mark.parametrize(
    "value",
    [
        threading.Lock(),
        (number for number in range(3)),
        np.frompyfunc(square, 2, 1),
        times(threading.Lock()),
        Plain(threading.Lock()),
        CustomLoss(square, times(threading.Lock())),
    ],
)
def test_what_cannot_be_compared_is_refused_with_advice(value):
    with pytest.raises(CheckpointError, match=r"^loss has a .* inside .*checkpoint=None"):
        identify(value, "loss")


def test_the_identity_of_a_fit_is_what_a_file_can_hold():
    parameters = {"checkpoint": "f", "n_init": 1, "max_iter": 9, "ridge": 0.5, "init": [VALUES]}
    found = fit_identity(Plain, parameters, {"data": VALUES})
    assert found["class"].endswith("test_identity.Plain")
    assert found["ridge"] == 0.5
    assert all(isinstance(found[name], str) for name in ("init", "data"))
    assert "max_iter" not in found
    assert fit_identity(Plain, {**parameters, "n_init": 2}, {})["max_iter"] == 9
    assert fit_identity(Plain, {**parameters, "checkpoint": None}, {}) == {}

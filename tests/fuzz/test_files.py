"""Model files of strangers: whatever is changed in one, it is refused, or does no harm."""

import functools
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import polyad
from polyad import LabelledTensor
from polyad.augmented.signals import STFT, Scaling
from polyad.exceptions import ModelFileError, PolyadError
from polyad.fitting.archive import read_archive, write_archive
from polyad.io.model import restored
from polyad.losses import HuberLoss
from tests.fuzz.mutations import mutated, mutated_bytes

SHAPE = (7, 5, 4)
# 5,000 in all: fewer of the classes whose use takes longest.
MUTATIONS = {"GeneralizedCP": 200, "QMF": 200, "WassersteinCP": 200}
MUTATIONS |= dict.fromkeys(("WassersteinDictionary", "WassersteinCPDictionary"), 60)
OTHERS = 490


@functools.cache
def tensor():
    data = np.random.default_rng(0).poisson(2.0, SHAPE).astype(float)
    labels = [
        [f"sample {k}" for k in range(7)],
        pd.date_range("2024-01-01", periods=5),
        ["p", "q", "r", "s"],
    ]
    return LabelledTensor(data, modes=("sample", "day", "place"), labels=labels)


@functools.cache
def table():
    values = np.random.default_rng(1).gamma(2.0, size=(8, 5))
    return pd.DataFrame(values, columns=list("abcde"), index=[f"s{k}" for k in range(8)])


CLASSES = np.array(["ill", "well", "ill", "well", "unknown", "ill", "well"])
QUICK = {"max_iter": 2, "random_state": 0}
SMALL = {"n_quantiles": 4, **QUICK}
MODELS = {
    "CP": lambda: polyad.CP(2, **QUICK).fit(tensor()),
    "CP online": lambda: polyad.CP(2, **QUICK).fit(tensor().data).partial_fit(tensor().data),
    "NonnegativeCP": lambda: polyad.NonnegativeCP(2, sparsity=[0.1, 0.1, 0.1], **QUICK).fit(
        tensor()
    ),
    "PoissonCP": lambda: polyad.PoissonCP(2, **QUICK).fit(tensor()),
    "GeneralizedCP": lambda: polyad.GeneralizedCP(2, loss=HuberLoss(0.5), **QUICK).fit(tensor()),
    "StochasticCP": lambda: polyad.StochasticCP(2, batch_size=4, **QUICK).fit(tensor()),
    "AugmentedCP": lambda: polyad.AugmentedCP(
        2, augment=Scaling(), preprocess=STFT(n_fft=2), batch_size=4, **QUICK
    ).fit(tensor()),
    "SimilarityCP": lambda: polyad.SimilarityCP(2, similarities={1: np.ones((5, 5))}, **QUICK).fit(
        tensor()
    ),
    "SupervisedCP": lambda: polyad.SupervisedCP(2, **QUICK).fit(tensor(), CLASSES),
    "WassersteinCP": lambda: polyad.WassersteinCP(2, costs={2: 1.0 - np.eye(4)}, **QUICK).fit(
        tensor()
    ),
    "WassersteinDictionary": lambda: polyad.WassersteinDictionary(2, **QUICK).fit(tensor()),
    "WassersteinCPDictionary": lambda: polyad.WassersteinCPDictionary(2, **QUICK).fit(tensor()),
    "QMF": lambda: polyad.QMF(2, **SMALL).fit(table()),
    "QMFQ nmf": lambda: polyad.QMFQ(2, projector="nmf", inner_iter=5, **SMALL).fit(table()),
    "QMFQ svd": lambda: polyad.QMFQ(2, **SMALL).fit(table()),
}


@functools.cache
def saved(name, folder):
    """Return a fitted model, and what its file holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MODELS[name]()
    path = folder / f"{name}.polyad"
    model.save(path)
    return model, path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


# What is told of a fit, and read by nothing else.
TOLD = {"history_", "n_iter_", "objective_", "status_"}


@functools.cache
def samples(name):
    return table()[:2] if name.startswith("QMF") else tensor()[:2]


def tell(model, name):
    repr(model), repr(model.history_), model.status_.advice
    return []


def use(model, name, features=None):
    """Use a model in all ways that read its numbers; return what comes out.

    Features that are given are not computed, but for the score, which takes as long again.
    """
    X = samples(name)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        features = np.asarray(model.transform(X)) if features is None else features
        back = np.asarray(model.inverse_transform(features))
        modes = range(len(getattr(model, "factors_", ())))
        tables = [model.factor_table(mode).to_numpy() for mode in modes]
        score = model.score(X, *([model.predict(X)] if name == "SupervisedCP" else []))
        tell(model, name)
    return [features, back, np.asarray(score), *tables]


@pytest.mark.parametrize("name", MODELS)
def test_everything_that_is_learned_has_a_rule(folder, name):
    model, path = saved(name, folder)
    known = {*model.get_params(), *model._rules(), "_sklearn_output_config"}
    assert set(vars(model)) <= known
    assert set(model._rules()) - {"feature_names_in_"} <= set(vars(model))
    for before, after in zip(use(model, name), use(polyad.load(path), name), strict=True):
        np.testing.assert_array_equal(before, after)


def test_every_class_is_here():
    named = [getattr(polyad, name) for name in polyad.__all__]
    classes = {kind.__name__ for kind in named if hasattr(kind, "inverse_transform")}
    assert {name.partition(" ")[0] for name in MODELS} == classes


def outcome_of(load, name, use=use):
    """Return "refused" if a file is, nothing if what it holds is of use, or what went wrong."""
    try:
        model = load()
    except ModelFileError:
        return "refused"
    except Exception as error:
        return f"load: {error!r}"
    try:
        results = use(model, name)
    except (PolyadError, NotFittedError):  # a file may hold a model that was never fitted
        return ""
    except Exception as error:
        return f"use: {error!r}"
    return "" if all(np.isfinite(result).all() for result in results) else "not finite"


def places_changed(content, changed):
    """Return which parts of a content were changed, the learned ones by name."""
    if not isinstance(changed.get("learned"), dict):
        return {"learned"}
    parts = {**content, **content["learned"], "learned": None}
    others = {**changed, **changed["learned"], "learned": None}
    names = parts.keys() | others.keys()
    return {name for name in names if parts.get(name) is not others.get(name)}


@pytest.mark.parametrize("name", MODELS)
def test_a_changed_file_is_refused_or_harmless(folder, name):
    model, path = saved(name, folder)
    content = read_archive(path, "model")
    short = functools.partial(use, features=use(model, name)[0])
    rng = np.random.default_rng(list(name.encode()))
    outcomes = []
    for number in range(MUTATIONS.get(name, OTHERS)):
        says, changed = mutated(content, rng)
        load = functools.partial(restored, changed, "changed.polyad")
        way = tell if places_changed(content, changed) <= TOLD else short
        if number % 20 == 0:
            way = use
            write_archive(folder / "changed.polyad", "model", changed)
            load = functools.partial(polyad.load, folder / "changed.polyad")
        outcomes.append((outcome_of(load, name, way), says))
    assert [found for found in outcomes if found[0] not in ("refused", "")] == []
    # Most changes break a rule, and some do not: a history may say what it likes.
    refused = sum(outcome == "refused" for outcome, _ in outcomes)
    assert 0.5 < refused / len(outcomes) < 1.0


@pytest.mark.parametrize("name", ["CP", "QMF"])
def test_changed_bytes_are_refused_or_harmless(folder, name):
    data = saved(name, folder)[1].read_bytes()
    rng = np.random.default_rng(list(name.encode()))
    path, outcomes = folder / "bytes.polyad", []
    for _ in range(80):
        says, changed = mutated_bytes(data, rng)
        path.write_bytes(changed)
        outcomes.append((outcome_of(functools.partial(polyad.load, path), name), says))
    assert [found for found in outcomes if found[0] not in ("refused", "")] == []

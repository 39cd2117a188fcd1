"""The pages for newcomers name every estimator, and the estimators use the same words."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import polyad
from polyad.estimators.documentation import documented
from tests.estimators import CROWDS

HERE = Path(__file__).parents[1]
CLASSES = [name for name in polyad.__all__ if inspect.isclass(getattr(polyad, name))]
ESTIMATORS = [name for name in CLASSES if hasattr(getattr(polyad, name), "fit")]
COMMON = inspect.signature(polyad.CP).parameters


def test_the_estimators_are_found():
    assert {"CP", "GeneralizedCP", "WassersteinCP"} <= set(ESTIMATORS)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/guide/which.md", "docs/reference.md"]
)
def test_pages_name_every_estimator(page):
    text = (HERE / page).read_text(encoding="utf-8")
    assert [
        name for name in ESTIMATORS if f"{name}`" not in text and f" {name}\n" not in text
    ] == []


@pytest.mark.parametrize("name", ESTIMATORS)
def test_shared_parameters_come_in_the_same_order(name):
    own = list(inspect.signature(getattr(polyad, name)).parameters)
    shared = [parameter for parameter in own if parameter in COMMON]
    assert shared == [parameter for parameter in COMMON if parameter in own]
    assert own[0] == "n_components" or getattr(polyad, name) in CROWDS


@pytest.mark.parametrize("name", ESTIMATORS)
def test_docstrings_list_the_parameters_in_their_order(name):
    kind = getattr(polyad, name)
    section = inspect.getdoc(kind).split("\nParameters\n")[1].split("\nAttributes\n")[0]
    documented = dict(re.findall(r"^(\w+) : (.+)$", section, flags=re.MULTILINE))
    parameters = inspect.signature(kind).parameters
    assert list(documented) == list(parameters)
    for parameter, kind_of in documented.items():
        told = kind_of.rsplit("default=", 1)[1].strip("'")
        default = parameters[parameter].default
        equal = float(told) == default if isinstance(default, float) else told == str(default)
        assert equal, f"{parameter}: {kind_of}, but the default is {default!r}"


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_docstrings_list_what_is_learned(name):
    kind = getattr(polyad, name)
    X = np.random.default_rng(0).uniform(0.5, 2.0, (6, 4))
    if kind in CROWDS:
        model = kind().fit(X.round())
    else:
        model = kind(1, max_iter=2, random_state=0).fit(X, np.arange(6) % 2)
    learned = {attribute for attribute in {*vars(model), *dir(kind)} if attribute[-1] == "_"}
    public = {attribute for attribute in learned if attribute[0] != "_"} | {"feature_names_in_"}
    section = inspect.getdoc(kind).split("\nAttributes\n")[1].split("\nNotes\n")[0]
    documented = re.findall(r"^([\w, ]+) : ", section, flags=re.MULTILINE)
    assert set(", ".join(documented).split(", ")) == public


@pytest.mark.parametrize("name", ESTIMATORS)
def test_methods_describe_their_parameters(name):
    methods = inspect.getmembers(getattr(polyad, name), inspect.isfunction)
    for title, method in methods:
        if title.startswith("_") or not method.__module__.startswith("polyad"):
            continue
        parameters = list(inspect.signature(method).parameters)[1:]
        text = inspect.getdoc(method).split("\nReturns\n")[0]
        assert re.findall(r"^(\w+) : ", text, flags=re.MULTILINE) == parameters, title
        assert "default=<" not in text, title


def test_shared_descriptions_are_inserted_with_defaults_and_additions():
    @documented
    class Example:
        """Has {tol} in its text.

        Parameters
        ----------
        {tol, n_init}
            A second sentence.
        own : {'a', 'b'}, default='a'
            Its own.
        """

        def __init__(self, *, tol=1e-5, n_init=3, own="a"):
            pass

    lines = inspect.getdoc(Example).splitlines()
    assert lines[0] == "Has {tol} in its text."
    assert lines[4] == "tol : float, default=1e-5"
    assert lines[7] == "n_init : int, default=3"
    assert lines[9:11] == ["    A second sentence.", "own : {'a', 'b'}, default='a'"]
    assert "n_init : int or 'auto', default='auto'" in inspect.getdoc(polyad.PoissonCP)


def test_without_docstrings_there_is_nothing_to_insert():
    assert documented(type("Bare", (), {})).__doc__ is None  # as under python -OO

"""The pages for newcomers name every estimator, and the estimators use the same words."""

import inspect
import re
from pathlib import Path

import pytest

import polyad

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
    assert own[0] == "n_components"


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

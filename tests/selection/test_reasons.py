"""The decision in words, for tables of every kind."""

import math

import pandas as pd
import pytest

from polyad.selection import RankSelection


def selection(losses=None, matches=None, consistency=None, *, n_repeats=5, **options):
    """Return a choice among tables that are given."""
    columns, methods = {}, []
    if losses is not None:
        methods.append("heldout")
        columns |= {"heldout_loss": losses, "heldout_loss_se": dict.fromkeys(losses, 0.1)}
    if matches is not None:
        methods.append("stability")
        columns |= {"restart_match": matches, "subsample_match": matches}
    if consistency is not None:
        methods.append("core_consistency")
        columns |= {"core_consistency": consistency}
    rows = [(r, name, k, 0.0) for name in columns for r in columns[name] for k in range(n_repeats)]
    values = pd.DataFrame(rows, columns=["rank", "measure", "repeat", "value"])
    return RankSelection(tuple(methods), pd.DataFrame(columns), values, 0.9, 50.0, 0, **options)


CASES = {
    "clear": (
        {"losses": {1: 3.0, 2: 1.0, 4: 2.0}},
        "heldout: rank 2 has the lowest loss of hidden entries, 1.",
    ),
    "within an error": (
        {"losses": {1: 3.0, 2: 1.0, 4: 0.95, 8: 1.3}},
        "heldout: rank 2 is the smallest whose loss of hidden entries, 1, is within a standard "
        "error (0.1) of the lowest, 0.95 at rank 4.",
    ),
    "largest": (
        {"losses": {1: 3.0, 2: 1.0}},
        "heldout: rank 2 has the lowest loss of hidden entries, 1. It is the largest that was "
        "tried: larger ones may be better. Try them, or give ranks='auto', which goes on by "
        "itself.",
    ),
    "smallest": (
        {"losses": {3: 1.0, 4: 1.5}},
        "heldout: rank 3 has the lowest loss of hidden entries, 1. It is the smallest that was "
        "tried: try smaller ones too.",
    ),
    "explodes": (
        {"losses": {1: 1.0, 2: 3.0, 4: 20.0}, "advice": "Try this."},
        "heldout: rank 1 has the lowest loss of hidden entries, 1. The loss explodes: at rank 4 it "
        "is 20 times the lowest. Try this.",
    ),
    "no model": (
        {"losses": {1: 7.0, 2: 7.5}, "advice": "Try this.", "loss_limit": 1.5},
        "heldout: rank 1 has the lowest loss of hidden entries, 7. A loss above 1.5 is more than a "
        "model of this kind leaves if it is right. Try this.",
    ),
    "few repeats": (
        {"losses": {1: 3.0, 2: 1.0, 4: 2.0}, "n_repeats": 2},
        "heldout: rank 2 has the lowest loss of hidden entries, 1. 2 repeats are too few for a "
        "standard error: with n_repeats=5 it counts.",
    ),
    "broken": (
        {"losses": {1: math.nan, 2: math.nan}},
        "heldout: every fit broke down. Scale the data, or use another loss or a ridge.",
    ),
    "unstable": (
        {"matches": {2: 0.5, 3: 0.7}},
        "stability: no rank is stable: none has a match of 0.9. The nearest is rank 3 with 0.70. "
        "Other starts or samples give other components, so that single ones should not be read. "
        "Smaller ranks, n_init=5 or more samples may help.",
    ),
    "less stable": (
        {"losses": {1: 3.0, 2: 2.0, 3: 1.0, 4: 2.0}, "matches": {1: 1.0, 2: 0.95, 3: 0.5, 4: 0.4}},
        "heldout: rank 3 has the lowest loss of hidden entries, 1.\n"
        "stability: rank 2 is the largest whose components come back from other starts and samples "
        "(a match of 0.95, at least 0.9 is asked for).\n"
        "Components come back up to rank 2 only: single components of a model of rank 3 should be "
        "read with care.",
    ),
    "inconsistent": (
        {"consistency": {2: 3.0, 3: 0.0}},
        "core_consistency: no rank has 50 percent: components interact, and the data is not of "
        "this form. Trust hidden entries more.",
    ),
    "consistent": (
        {"consistency": {1: 100.0, 2: 97.0, 3: 0.0}},
        "core_consistency: rank 2 is the largest with 50 percent or more (97).",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_decision_has_its_reason(case):
    given, expected = CASES[case]
    found = selection(**given)
    assert found.reason == expected
    assert expected in repr(found)

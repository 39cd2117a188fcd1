"""What is done to a table before a fit, against the same by hand with pandas."""

import numpy as np
import pandas as pd
import pytest

from polyad import LabelledTensor
from polyad.exceptions import InvalidInputError, InvalidTypeError

MODES = ["patient", "diagnosis", "drug"]


def visits(seed=0, n=50):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "patient": rng.integers(12, size=n),
            "diagnosis": np.array(list("abcdef"))[np.minimum(rng.geometric(0.4, size=n), 6) - 1],
            "drug": np.array(list("uvwxyz"))[np.minimum(rng.geometric(0.3, size=n), 6) - 1],
        }
    )


def dense(frame, **options):
    tensor = LabelledTensor.from_frame(frame, modes=MODES, **options)
    return tensor, tensor.to_dense()


def test_entries_and_totals():
    frame = visits()
    _, counts = dense(frame)
    totals = counts.sum(axis=(1, 2), keepdims=True)
    expected = {
        ("presence", None): counts > 0,
        ("log", None): np.log1p(counts),
        ("sum", 2.0): 2 * counts / totals,
        ("log", 10.0): np.log1p(10 * counts / totals),
        ("presence", 1.0): (counts > 0) / (counts > 0).sum(axis=(1, 2), keepdims=True),
    }
    for (entries, total), wanted in expected.items():
        _, found = dense(frame, entries=entries, sample_total=total)
        np.testing.assert_allclose(found, wanted, rtol=1e-14)
    huge = frame.assign(x=1e308)
    _, found = dense(huge.drop_duplicates(), value="x", sample_total=1.0)
    np.testing.assert_allclose(found, expected["presence", 1.0], rtol=1e-14)
    single = LabelledTensor.from_frame(frame, modes=MODES, entries="log", dtype=np.float32)
    assert single.dtype == np.float32


def by_hand(frame, least, most):
    """Drop rows of labels, one mode after the other, until nothing changes."""
    n = frame["patient"].nunique()
    first = {mode: frame.groupby(mode)["patient"].nunique() for mode in MODES[1:]}
    for mode in MODES[1:]:
        frame = frame[frame[mode].isin(first[mode].index[first[mode] <= most * n])]
    while True:
        before = len(frame)
        for mode in MODES[1:]:
            support = frame.groupby(mode)["patient"].nunique()
            frame = frame[frame[mode].isin(support.index[support >= least])]
        if len(frame) == before:
            return frame


@pytest.mark.parametrize(("least", "most"), [(2, 1.0), (3, 0.75), (1, 0.5)])
def test_rare_and_ubiquitous_labels_are_dropped(least, most):
    frame = visits()
    tensor, found = dense(frame, min_samples=least, max_samples=most)
    expected, wanted = dense(by_hand(frame, least, most))
    np.testing.assert_array_equal(found, wanted)
    for mode in MODES:
        np.testing.assert_array_equal(tensor.labels[mode], expected.labels[mode])
    shares, _ = dense(frame, min_samples=least / 12, max_samples=most)
    assert shares.shape == tensor.shape


def test_limits_by_mode_and_labels_that_stay():
    frame = visits()
    whole, _ = dense(frame)
    one, _ = dense(frame, min_samples={"drug": 6})
    assert one.shape[1] == whole.shape[1]
    assert one.shape[2] < whole.shape[2]
    patients = np.arange(15)
    given, _ = dense(frame, labels={"patient": patients, "drug": list("uvwxyz")}, min_samples=8)
    assert given.labels["patient"].tolist() == patients.tolist()
    assert given.shape[2] == 6
    assert given.shape[1] < whole.shape[1]


def test_stored_zeros_are_not_there():
    frame = pd.DataFrame({"patient": [1, 2, 3], "diagnosis": list("aab"), "drug": "u"})
    frame["count"] = [2.0, 0.0, 3.0]
    tensor, found = dense(frame, value="count", min_samples=1)
    assert tensor.labels["patient"].tolist() == [1, 3]
    np.testing.assert_array_equal(found[:, :, 0], [[2.0, 0.0], [0.0, 3.0]])
    _, present = dense(frame, value="count", entries="presence")
    assert present.sum() == 2
    with pytest.raises(InvalidInputError, match="min_samples=1: no sample has an entry but zero"):
        dense(frame.assign(count=0.0), value="count", min_samples=1)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"entries": "binary"}, InvalidInputError, "give 'sum', 'presence' or 'log'"),
        ({"entries": ["log"]}, InvalidInputError, "has no meaning"),
        ({"sample_total": 0}, InvalidInputError, "sample_total=0 is not a sum"),
        ({"sample_total": True}, InvalidInputError, "sample_total=True is not a sum"),
        ({"sample_total": np.nan}, InvalidInputError, "sample_total=nan is not a sum"),
        ({"sample_total": 1e39, "dtype": np.float32}, InvalidInputError, "beyond the range"),
        ({"min_samples": 0}, InvalidInputError, "min_samples=0 is not accepted"),
        ({"max_samples": 1.5}, InvalidInputError, "max_samples=1.5 is not accepted"),
        ({"max_samples": "half"}, InvalidTypeError, "max_samples='half' is a str"),
        ({"min_samples": {"nurse": 2}}, InvalidInputError, "names 'nurse', not one of"),
        ({"min_samples": {"patient": 2}}, InvalidInputError, "names 'patient', not one of"),
        (
            {"min_samples": {"drug": 2}, "labels": {"drug": list("uvwxyz")}},
            InvalidInputError,
            "names 'drug', whose labels are given",
        ),
        ({"min_samples": 13}, InvalidInputError, "left with min_samples=13: of 12 samples"),
        ({"labels": [[1, 2], None, None]}, InvalidTypeError, "labels is a list; give a dict"),
        ({"max_samples": 1}, InvalidInputError, "left with max_samples=1: .*'diagnosis' are each"),
    ],
)
def test_bad_requests(options, error, says):
    with pytest.raises(error, match=says):
        dense(visits(), **options)


@pytest.mark.parametrize("options", [{"entries": "log"}, {"sample_total": 1}])
def test_negative_entries_have_no_logarithm_and_no_share(options):
    with pytest.raises(InvalidInputError, match="needs entries of zero or more; the smallest"):
        dense(visits().assign(x=-1.0), value="x", **options)

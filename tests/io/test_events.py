"""Tables of events become the tensor that counting by hand gives."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyad import NonnegativeCP
from polyad.exceptions import InvalidInputError, InvalidTypeError
from polyad.io import tensor_from_events


def tables(seed=0, n=300):
    generator = np.random.default_rng(seed)
    names = np.array(["flu", "gout", "asthma", "angina", "anaemia"])
    drugs = np.array(["aspirin", "codeine", "inhaler", "statin"])

    def events(texts, first_code):
        code = generator.integers(len(texts), size=n)
        patient = generator.integers(30, size=n)
        return pd.DataFrame(
            {
                "patient": patient,
                "encounter": 10 * patient + generator.integers(3, size=n),
                "code": first_code + code,
                "description": texts[code],
            }
        )

    diagnoses, medications = events(names, 100), events(drugs, 500)
    reason = generator.integers(-2, len(names), size=n)
    medications["reason_code"] = np.where(reason < 0, np.nan, 100 + reason)
    medications["reason_description"] = [None if k < 0 else names[k] for k in reason]
    return medications, diagnoses


def by_hand(medications, diagnoses, link):
    """Count the pairs in a dictionary, one event after the other."""
    counts = {}
    if link == "reason":
        for row in medications.itertuples():
            if row.reason_description is not None and row.reason_description == (
                row.reason_description
            ):
                key = (row.patient, row.reason_description, row.description)
                counts[key] = counts.get(key, 0) + 1
        return counts
    visits = {}
    for kind, table in (("dx", diagnoses), ("rx", medications)):
        for row in table.itertuples():
            visit = visits.setdefault((row.patient, row.encounter), {"dx": set(), "rx": set()})
            visit[kind].add(row.description)
    for (patient, _), visit in visits.items():
        for diagnosis in visit["dx"]:
            for drug in visit["rx"]:
                counts[patient, diagnosis, drug] = counts.get((patient, diagnosis, drug), 0) + 1
    return counts


def entries(tensor):
    frame = tensor.to_frame()
    return {tuple(row[:3]): row[3] for row in frame.itertuples(index=False)}


@pytest.mark.parametrize("link", ["encounter", "reason"])
@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_counting_by_hand(link, seed):
    medications, diagnoses = tables(seed)
    tensor = tensor_from_events(medications, diagnoses, link=link)
    assert tensor.is_sparse
    assert tensor.modes == ("patient", "diagnosis", "medication")
    assert entries(tensor) == by_hand(medications, diagnoses, link)
    assert list(tensor.labels[0]) == sorted(tensor.labels[0])


@pytest.mark.parametrize("link", ["encounter", "reason"])
def test_presence_is_where_the_counts_are(link):
    medications, diagnoses = tables()
    counts = tensor_from_events(medications, diagnoses, link=link)
    present = tensor_from_events(medications, diagnoses, link=link, entries="presence")
    assert counts.data.data.max() > 1
    np.testing.assert_array_equal(present.to_dense(), counts.to_dense() > 0)


def in_polars(table):
    columns = {name: table[name].astype(object) for name in table}
    return pl.DataFrame({k: v.where(v.notna(), None).tolist() for k, v in columns.items()})


@pytest.mark.parametrize("link", ["encounter", "reason"])
@pytest.mark.parametrize("category", [False, True])
def test_polars_and_pandas_agree(link, category):
    medications, diagnoses = tables()
    ours = tensor_from_events(medications, diagnoses, link=link)
    if category:
        medications["description"] = medications["description"].astype("category")
    theirs = [in_polars(table) for table in (medications, diagnoses)]
    again = tensor_from_events(*theirs, link=link)
    assert entries(again) == entries(ours)
    assert entries(tensor_from_events(medications, diagnoses, link=link)) == entries(ours)


def test_the_tables_stay_as_they_are():
    medications, diagnoses = tables()
    copies = medications.copy(), diagnoses.copy()
    tensor_from_events(medications, diagnoses, min_patients=2)
    pd.testing.assert_frame_equal(medications, copies[0])
    pd.testing.assert_frame_equal(diagnoses, copies[1])


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5))
def test_every_code_has_the_support_that_was_asked_for(seed, min_patients, max_codes):
    medications, diagnoses = tables(seed, n=80)
    try:
        tensor = tensor_from_events(
            medications, diagnoses, min_patients=min_patients, max_codes=max_codes
        )
    except InvalidInputError as error:
        assert "Nothing is left" in str(error)  # noqa: PT017
        return
    frame = tensor.to_frame()
    for mode in ("diagnosis", "medication"):
        assert frame.groupby(mode, observed=False)["patient"].nunique().min() >= min_patients
        assert len(tensor.label_index(mode)) <= max_codes


def test_max_codes_keeps_those_of_the_most_patients():
    medications, diagnoses = tables()
    everything = tensor_from_events(medications, diagnoses).to_frame()
    support = everything.groupby("diagnosis", observed=True)["patient"].nunique()
    kept = tensor_from_events(medications, diagnoses, max_codes=2)
    assert set(kept.labels[1]) <= set(support.sort_values(ascending=False).index[:3])
    assert len(kept.labels[1]) == len(kept.labels[2]) == 2


def test_patients_can_be_asked_for_also_those_without_events():
    medications, diagnoses = tables()
    tensor = tensor_from_events(medications, diagnoses, patients=[7, 99, 3])
    assert list(tensor.labels[0]) == [7, 99, 3]
    dense = tensor.to_dense()
    assert dense[0].any()
    assert not dense[1].any()
    expected = {k: v for k, v in by_hand(medications, diagnoses, "encounter").items() if k[0] == 7}
    assert {k: v for k, v in entries(tensor).items() if k[0] == 7} == expected


def test_columns_of_other_names():
    medications, diagnoses = tables()
    expected = entries(tensor_from_events(medications, diagnoses))
    names = {"patient": "PATIENT", "encounter": "ENCOUNTER", "code": "CODE"}
    renamed = [table.rename(columns=names) for table in (medications, diagnoses)]
    assert entries(tensor_from_events(*renamed, columns=names)) == expected


def test_columns_of_other_names_in_each_table():
    medications, diagnoses = tables()
    expected = entries(tensor_from_events(medications, diagnoses))
    names = {
        "patient": "id",
        "medications": {"code": "ndc"},
        "diagnoses": {"code": "icd", "encounter": "stay"},
    }
    drugs = medications.rename(columns={"patient": "id", "code": "ndc"})
    illnesses = diagnoses.rename(columns={"patient": "id", "code": "icd", "encounter": "stay"})
    assert entries(tensor_from_events(drugs, illnesses, columns=names)) == expected


def test_swapped_tables_are_refused():
    medications, diagnoses = tables()
    with pytest.raises(InvalidInputError, match=r"look swapped: diagnoses has.*'reason_code'"):
        tensor_from_events(diagnoses, medications)
    one = {"medications": {"code": "ndc"}, "diagnoses": {"code": "ICDCode"}}
    drugs = medications.rename(columns={"code": "ndc"}).drop(columns="reason_code")
    illnesses = diagnoses.rename(columns={"code": "ICDCode"})
    assert tensor_from_events(drugs, illnesses, columns=one).shape == (30, 5, 4)
    with pytest.raises(InvalidInputError, match=r"columns \['ndc'\], medications \['ICDCode'\]"):
        tensor_from_events(illnesses, drugs, columns=one)


def test_codes_that_most_patients_have_can_be_left_out():
    medications, diagnoses = tables(n=60)
    whole = tensor_from_events(medications, diagnoses)
    support = whole.to_frame().groupby("diagnosis", observed=True)["patient"].nunique()
    limit = int(support.max()) - 1
    fewer = tensor_from_events(
        medications, diagnoses, max_patients={"diagnosis": limit}, sample_total=1.0
    )
    assert set(fewer.labels["diagnosis"]) == set(support.index[support <= limit])
    np.testing.assert_allclose(fewer.to_dense().sum(axis=(1, 2)), 1.0)


def test_codes_are_labels_where_there_is_no_description():
    medications, diagnoses = tables()
    bare = [table.drop(columns="description") for table in (medications, diagnoses)]
    codes = tensor_from_events(*bare)
    assert list(codes.labels[1]) == [100, 101, 102, 103, 104]
    named = tensor_from_events(medications, diagnoses, columns={"description": None})
    assert entries(named) == entries(codes)
    reasons = tensor_from_events(medications, link="reason", columns={"reason_description": None})
    assert reasons.labels[1].dtype.kind == "i"
    with_names = tensor_from_events(
        medications.drop(columns="reason_description"), diagnoses, link="reason"
    )
    assert set(with_names.labels[1]) == {"flu", "gout", "asthma", "angina", "anaemia"}


def test_a_description_that_two_codes_share_gets_the_code():
    medications, diagnoses = tables()
    diagnoses["description"] = diagnoses["description"].replace({"gout": "flu"})
    tensor = tensor_from_events(medications, diagnoses)
    assert sorted(tensor.labels[1]) == ["anaemia", "angina", "asthma", "flu [100]", "flu [101]"]


def test_a_description_that_looks_like_another_with_its_code_stays_apart():
    medications, diagnoses = tables()
    names = {"gout": "flu", "asthma": "flu [100]"}
    diagnoses["description"] = diagnoses["description"].replace(names)
    tensor = tensor_from_events(medications, diagnoses)
    assert len(tensor.labels[1]) == 5
    assert "flu [101]" in tensor.labels[1]


def test_the_usual_description_of_a_code_is_its_label():
    medications, diagnoses = tables()
    odd = diagnoses.index[diagnoses["code"] == 100][:2]
    diagnoses.loc[odd, "description"] = ["influenza", None]
    assert "flu" in tensor_from_events(medications, diagnoses).labels[1]
    assert "influenza" not in tensor_from_events(medications, diagnoses).labels[1]


def test_rows_without_encounter_make_no_pair():
    medications, diagnoses = tables()
    extra = medications.head(5).assign(encounter=np.nan)
    with_gaps = pd.concat([medications, extra], ignore_index=True)
    assert entries(tensor_from_events(with_gaps, diagnoses)) == entries(
        tensor_from_events(medications, diagnoses)
    )


def test_a_fit_has_the_descriptions():
    medications, diagnoses = tables()
    model = NonnegativeCP(2, random_state=0).fit(tensor_from_events(medications, diagnoses))
    assert model.top(0, "medication", 1).index[0] in {"aspirin", "codeine", "inhaler", "statin"}


# What is refused.


def test_missing_columns_are_named():
    medications, diagnoses = tables()
    with pytest.raises(InvalidInputError, match="table diagnoses has no column 'encounter'"):
        tensor_from_events(medications, diagnoses.drop(columns="encounter"))
    with pytest.raises(InvalidInputError, match="table medications has no column 'reason_code'"):
        tensor_from_events(medications.drop(columns="reason_code"), link="reason")
    with pytest.raises(InvalidInputError, match="table medications has no column 'text'"):
        tensor_from_events(medications, diagnoses, columns={"description": "text"})


def test_no_overlap():
    medications, diagnoses = tables()
    with pytest.raises(InvalidInputError, match="No encounter of a patient has both"):
        tensor_from_events(medications.assign(encounter=-1), diagnoses)
    with pytest.raises(InvalidTypeError, match="'encounter' is of type int64 in diagnoses"):
        tensor_from_events(medications.astype({"encounter": str}), diagnoses)
    with pytest.raises(InvalidInputError, match="No medication has a reason"):
        tensor_from_events(medications.assign(reason_code=np.nan), link="reason")
    with pytest.raises(InvalidInputError, match="None of the 2 patients asked for"):
        tensor_from_events(medications, diagnoses, patients=["a", "b"])


def test_nothing_left():
    medications, diagnoses = tables()
    with pytest.raises(InvalidInputError, match="Nothing is left with min_patients=31"):
        tensor_from_events(medications, diagnoses, min_patients=31)
    with pytest.raises(InvalidInputError, match="table medications has no rows"):
        tensor_from_events(medications.head(0), diagnoses)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"link": "visit"}, "link='visit' has no meaning"),
        ({"link": np.array([1.0, -1.0])}, "link=.* has no meaning"),
        ({"min_patients": 0}, "min_patients=0 is not accepted"),
        ({"max_patients": 1.5}, "max_patients=1.5 is not accepted"),
        ({"entries": "binary"}, "entries='binary' has no meaning"),
        ({"max_codes": 1.5}, "max_codes=1.5 is not accepted"),
        ({"columns": {"drug": "code"}}, "columns names 'drug'"),
    ],
)
def test_options_without_meaning(options, text):
    medications, diagnoses = tables()
    with pytest.raises(InvalidInputError, match=text):
        tensor_from_events(medications, diagnoses, **options)


def test_bad_tables():
    medications, diagnoses = tables()
    with pytest.raises(InvalidInputError, match="Give the table of diagnoses too"):
        tensor_from_events(medications)
    with pytest.raises(InvalidTypeError, match="medications must be a pandas or polars DataFrame"):
        tensor_from_events(medications.to_numpy(), diagnoses)
    with pytest.raises(InvalidTypeError, match="diagnoses must be a pandas or polars DataFrame"):
        tensor_from_events(medications, np.True_, link="reason")
    with pytest.raises(InvalidTypeError, match="columns gives 'code' for the table medications"):
        tensor_from_events(medications, diagnoses, columns={"medications": "code"})
    with pytest.raises(InvalidTypeError, match="columns='patient' is a str; give a dict"):
        tensor_from_events(medications, diagnoses, columns="patient")
    with pytest.raises(InvalidTypeError, match="name of a column is needed"):
        tensor_from_events(medications, diagnoses, columns={"patient": None})
    gap = diagnoses.astype({"patient": float})
    gap.loc[3, "patient"] = np.nan
    with pytest.raises(InvalidInputError, match=r"diagnoses has no patient in 1 rows.*row 3"):
        tensor_from_events(medications, gap)

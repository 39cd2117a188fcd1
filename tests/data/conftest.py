"""Labelled data that several tests begin with."""

import numpy as np
import pandas as pd
import pytest

from polyad.data.labels import LabelledTensor


@pytest.fixture
def events():
    return pd.DataFrame(
        {
            "patient": ["bob", "ann", "ann", "bob", "ann"],
            "diagnosis": ["flu", "flu", "gout", "flu", "flu"],
            "drug": ["x", "y", "x", "x", "y"],
            "dose": [1.0, 2.0, 3.0, 4.0, 5.0],
        }
    )


@pytest.fixture
def cube():
    """Dense, with text, integer and no labels."""
    data = np.arange(24.0).reshape(2, 3, 4)
    return LabelledTensor(data, modes=["a", "b", "c"], labels=[["p", "q"], [10, 20, 30], None])

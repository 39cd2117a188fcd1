"""The number of components, by the likelihood of samples that were left out and by stability."""

import numpy as np
import pandas as pd
import pytest

from polyad import MixedMembership
from polyad.exceptions import InvalidInputError
from polyad.selection import select_rank
from tests.membership.planted import planted

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_the_number_of_components_is_found():
    y, _, _ = planted(600, p=15, k=3)
    X = pd.DataFrame(np.array(list("abcd"))[y], columns=[f"q{j}" for j in range(15)])
    model = MixedMembership(alpha0=0.3, tol=1e-4)
    assert select_rank(model, y, [2, 3], n_repeats=2, random_state=0).best_rank == 3
    choice = select_rank(
        model,
        X,
        [2, 3, 4],
        method=["heldout", "stability"],
        n_repeats=2,
        random_state=0,
    )
    assert choice.best_ranks["heldout"] == 3
    assert choice.best_ranks["stability"] >= 3
    assert (choice.table["heldout_loss"] > 0).all()
    assert choice.table.loc[3, "restart_match"] > 0.98


def test_what_is_refused():
    y, _, _ = planted(50)
    with pytest.raises(InvalidInputError, match="core_consistency' is for sums of components"):
        select_rank(MixedMembership(), y, [1, 2], method="core_consistency")
    with pytest.raises(InvalidInputError, match="more than moments can tell apart"):
        select_rank(MixedMembership(), y, [1, 40], n_repeats=2, random_state=0)

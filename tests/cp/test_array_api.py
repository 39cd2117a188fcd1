"""Dense data of other namespaces: same kind in, same kind out, same numbers."""

import array_api_strict
import numpy as np
import pytest
import torch

from polyad import CP
from polyad.datasets import make_low_rank

X = make_low_rank((12, 9, 8), 3, noise=0.1, random_state=0)[0]
HOLED = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)


def to_torch(array):
    return torch.tensor(array)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("convert", [to_torch, array_api_strict.asarray])
@pytest.mark.parametrize("data", [X, HOLED])
@pytest.mark.parametrize(("init", "ridge"), [("svd", 0.0), ("random", 0.5)])
def test_same_kind_in_and_out(convert, data, init, ridge):
    options = {"init": init, "ridge": ridge, "random_state": 0, "tol": 0, "max_iter": 4}
    reference = CP(3, **options).fit(data)
    other = convert(data)
    model = CP(3, **options).fit(other)
    for result in (model.factors_[1], model.weights_, model.transform(other), model.components_):
        assert type(result) is type(other)
    assert type(model.inverse_transform(model.transform(other))) is type(other)
    np.testing.assert_allclose(np.asarray(model.weights_), reference.weights_, rtol=1e-4)
    np.testing.assert_allclose(
        np.asarray(model.transform(other)), reference.transform(data), rtol=0, atol=1e-3
    )
    assert model.score(other) == pytest.approx(reference.score(data), abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_type_is_kept(dtype):
    model = CP(3, random_state=0).fit(torch.tensor(X, dtype=dtype))
    assert model.factors_[0].dtype == dtype
    assert model.transform(torch.tensor(X, dtype=dtype)).dtype == dtype


def test_tables_from_torch():
    model = CP(3, random_state=0).fit(torch.tensor(X))
    assert model.factor_table(1).shape == (9, 3)
    assert len(model.top(0, 2, 4)) == 4


def test_partial_fit_and_checkpoint_with_torch(tmp_path):
    data = torch.tensor(X)
    model = CP(3, random_state=0, checkpoint=tmp_path / "state").fit(data[:8])
    again = CP(3, random_state=0, checkpoint=tmp_path / "state").fit(data[:8])
    assert torch.equal(model.factors_[0], again.factors_[0])
    model.partial_fit(data[8:])
    assert isinstance(model.factors_[0], torch.Tensor)
    assert model.factors_[0].shape == (12, 3)


def test_a_model_of_numpy_data_takes_torch_and_the_other_way_round():
    model = CP(3, random_state=0).fit(X)
    assert isinstance(model.transform(torch.tensor(X)), torch.Tensor)
    other = CP(3, tol=1e-2, random_state=0).fit(torch.tensor(X))
    assert isinstance(other.transform(X), np.ndarray)

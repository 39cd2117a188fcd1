"""Fits of data that is not in memory: the same batches give the same numbers."""

import numpy as np
import pytest
import zarr
from scipy.sparse import coo_array

from polyad import LabelledTensor, Status, StochasticCP, factor_match_score
from polyad.datasets import make_low_rank
from polyad.exceptions import InvalidInputError, NumericalError
from tests.forks import run

X, TRUTH = make_low_rank((240, 9, 8), 3, noise=0.1, random_state=0)
PARAMETERS = {"n_components": 3, "batch_size": 40, "random_state": 0}


class AsH5py:
    """What h5py.Dataset has of an array."""

    def __init__(self, array):
        self._array = array
        self.shape, self.dtype, self.ndim, self.chunks = array.shape, array.dtype, array.ndim, None

    def __getitem__(self, key):
        return self._array[key]


def batches():
    return (X[k : k + 40] for k in range(0, 240, 40))


def kinds(tmp_path):
    np.save(tmp_path / "data.npy", X)
    stored = zarr.create_array(
        str(tmp_path / "data.zarr"), shape=X.shape, chunks=(20, 9, 4), dtype=float
    )
    stored[:] = X
    return {
        "memory map": np.load(tmp_path / "data.npy", mmap_mode="r"),
        "fortran map": np.lib.format.open_memmap(
            tmp_path / "f.npy", "w+", X.dtype, X.shape, fortran_order=True
        ),
        "zarr": zarr.open_array(str(tmp_path / "data.zarr"), mode="r"),
        "h5py": AsH5py(X),
        "list": list(batches()),
        "callable": batches,
    }


def test_the_same_batches_give_the_same_numbers(tmp_path):
    """Streams do not know how many batches there are: a given rate makes them comparable."""
    parameters = {**PARAMETERS, "shuffle": False, "learning_rate": 0.3}
    whole = StochasticCP(**parameters).fit(X)
    assert factor_match_score(whole.kruskal_, TRUTH) > 0.999
    for name, data in kinds(tmp_path).items():
        if name == "fortran map":
            data[:] = X
        model = StochasticCP(**parameters).fit(data)
        if name == "fortran map":  # products of another order of sums
            np.testing.assert_allclose(model.factors_[1], whole.factors_[1], atol=1e-9)
            continue
        assert model.history_.objective == whole.history_.objective, name
        for one, other in zip(model.factors_, whole.factors_, strict=True):
            assert np.array_equal(one, other), name
        assert model.n_samples_seen_ == 240
        np.testing.assert_allclose(model.transform(data), whole.transform(X), atol=1e-10)
        assert model.score(data) == pytest.approx(whole.score(X), abs=1e-12)
        np.testing.assert_allclose(whole.transform(data), whole.transform(X), atol=1e-10)


def test_shuffled_blocks_find_the_components(tmp_path):
    for name, data in kinds(tmp_path).items():
        if name == "fortran map":
            data[:] = X
        model = StochasticCP(**PARAMETERS).fit(data)
        assert model.status_ is Status.CONVERGED, name
        assert factor_match_score(model.kruskal_, TRUTH) > 0.99, name
        again = StochasticCP(**PARAMETERS).fit(data)
        assert np.array_equal(model.factors_[0], again.factors_[0])
        np.testing.assert_allclose(
            model.transform(data), model.factors_[0] * model.weights_, atol=1e-9
        )


def test_a_generator_is_one_pass():
    model = StochasticCP(**PARAMETERS, max_iter=1).fit(batches())
    assert model.status_ is Status.MAX_ITER  # without a warning
    assert model.n_steps_ == 6
    assert model.factors_[0].shape == (240, 3)
    same = StochasticCP(**PARAMETERS, max_iter=1, learning_rate=0.3).fit(batches())
    listed = StochasticCP(**PARAMETERS, max_iter=1, learning_rate=0.3, shuffle=False)
    listed.fit(list(batches()))
    assert np.array_equal(same.factors_[1], listed.factors_[1])
    assert same.score(batches()) > 0.98
    # Rows are those for the factors that the batch met: later ones are close to the final ones.
    features, final = same.factors_[0] * same.weights_, same.transform(X)
    gaps = [np.linalg.norm((features - final)[k : k + 40]) for k in range(0, 240, 40)]
    assert gaps[-1] < gaps[0]
    assert gaps[-1] < 0.2 * np.linalg.norm(final[-40:])


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"max_iter": 2}, "max_iter=2 asks for several sweeps"),
        ({}, "max_iter=100 asks for several sweeps"),
        ({"max_iter": 1, "n_init": 3}, "n_init=3"),
        ({"max_iter": 1, "checkpoint": "state"}, "checkpoint"),
    ],
)
def test_a_generator_is_not_read_twice(parameters, says):
    with pytest.raises(InvalidInputError, match=says):
        StochasticCP(**PARAMETERS, **parameters).fit(batches())


def test_a_generator_is_read_batch_by_batch():
    """No batch is made before the one before it was learned from."""
    alive = []

    class Counted(np.ndarray):
        pass

    def counted():
        import weakref

        for part in batches():
            block = part.copy().view(Counted)
            alive.append(weakref.ref(block))
            assert sum(ref() is not None for ref in alive) <= 3
            yield block

    StochasticCP(**PARAMETERS, max_iter=1).fit(counted())
    assert len(alive) == 6


def test_an_interrupted_stream_leaves_no_half_model():
    def interrupted():
        yield X[:40]
        raise KeyboardInterrupt

    model = StochasticCP(**PARAMETERS, max_iter=1)
    with pytest.raises(KeyboardInterrupt):
        model.fit(interrupted())
    assert not hasattr(model, "factors_")


def test_batches_of_incompatible_size_break_the_fit_and_say_so():
    parts = [(X[:40] * 1e-13).astype(np.float32), (X[40:80] * 1e13).astype(np.float32)]
    model = StochasticCP(**PARAMETERS, shuffle=False, ridge=0.0)
    with np.errstate(all="ignore"), pytest.raises(NumericalError, match="Iteration 1"):
        model.fit(parts)


def test_a_bad_batch_leaves_the_model():
    model = StochasticCP(**PARAMETERS).fit(X)
    before = model.transform(X)
    worse = X.copy()
    worse[100, 2, 3] = np.inf
    parts = [worse[k : k + 40] for k in range(0, 240, 40)]
    for data in (parts, lambda: parts, AsH5py(worse)):
        with pytest.raises(InvalidInputError, match=r"(batch|block) 2.*infinity, first at \(20,"):
            model.fit(data)
        with pytest.raises(InvalidInputError, match=r"(batch|block) 2"):
            model.transform(data)
        assert np.array_equal(model.transform(X), before)
    with pytest.raises(InvalidInputError, match="size 5 in mode 1"):
        model.transform([X[:, :5]])
    with pytest.raises(InvalidInputError, match="X has 2 modes"):
        model.transform([X[:, 0]])


def test_sparse_and_missing_batches():
    listed = [coo_array(part) for part in batches()]
    model = StochasticCP(**PARAMETERS).fit(listed)
    assert factor_match_score(model.kruskal_, TRUTH) > 0.99
    holed = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
    model = StochasticCP(**PARAMETERS).fit([holed[k : k + 40] for k in range(0, 240, 40)])
    assert factor_match_score(model.kruskal_, TRUTH) > 0.99
    on_disk = StochasticCP(**PARAMETERS).fit(AsH5py(holed))
    assert factor_match_score(on_disk.kruskal_, TRUTH) > 0.99


def labelled(start, stop, names="pqrstuvw"):
    labels = [[f"s{k}" for k in range(start, stop)], None, list(names)]
    return LabelledTensor(X[start:stop], modes=["sample", "b", "c"], labels=labels)


def test_labels_of_batches_are_joined():
    parts = [labelled(k, k + 40) for k in range(0, 240, 40)]
    names = [f"s{k}" for k in range(240)]
    for data in (parts, lambda: iter(parts)):
        model = StochasticCP(**PARAMETERS).fit(data)
        assert model.factor_table("sample").index.tolist() == names
        assert set(model.top(0, "c", 3).index) <= set("pqrstuvw")
        model.set_output(transform="pandas")
        assert model.transform(data).index.tolist() == names
    once = StochasticCP(**PARAMETERS, max_iter=1).fit(iter(parts))
    assert once.factor_table("sample").index.tolist() == names
    bare = LabelledTensor(X[:9], modes=["sample", "b", "c"], labels={"c": list("pqrstuvw")})
    with pytest.raises(InvalidInputError, match="In batch 1: the labels of the samples"):
        StochasticCP(**PARAMETERS).fit([parts[0], bare])


def test_a_graph_over_a_stream():
    graph = np.ones((240, 240))
    for data in (AsH5py(X), list(batches()), batches):
        model = StochasticCP(**PARAMETERS, graph=graph, graph_weight=1e-4).fit(data)
        assert model.score(X) > 0.95
    with pytest.raises(InvalidInputError, match="graph has 100 samples, but the data has more"):
        StochasticCP(**PARAMETERS, graph=graph[:100, :100]).fit(batches)
    with pytest.raises(InvalidInputError, match=r"\(240, 240\) is needed"):
        StochasticCP(**PARAMETERS, graph=graph[:100, :100]).fit(AsH5py(X))


CEILING = """
import os, resource, sys, warnings
import numpy as np, sklearn.base, pandas
from polyad import StochasticCP

warnings.simplefilter("ignore")
X = np.load(sys.argv[1], mmap_mode="r")
StochasticCP(3, max_iter=2).fit(X[:300].astype(np.float64))  # loads what there is to load
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
limit = X.size * 8 // 4  # a quarter of what the data would take as float64
resource.setrlimit(resource.RLIMIT_AS, (used + limit, used + limit))
try:
    np.asarray(X, dtype=np.float64)
except MemoryError:
    model = StochasticCP(3, max_iter=2, random_state=0).fit(X)
    print(round(model.score(X), 2), model.transform(X).shape, flush=True)
"""


def test_a_memory_map_larger_than_memory(tmp_path):
    """The data as numbers is four times as large as what the process may still take."""
    a, b, c = (np.random.default_rng(0).integers(-3, 4, (n, 3)) for n in (6_000, 40, 40))
    stored = np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.int16, (6_000, 40, 40))
    for k in range(0, 6_000, 2000):
        stored[k : k + 2000] = np.einsum("nr,ir,jr->nij", a[k : k + 2000], b, c)
    stored.flush()
    result = run(CEILING, tmp_path / "large.npy")
    assert result.stdout == "1.0 (6000, 3)\n", result.stderr


@pytest.mark.parametrize("later", [1, 3])
def test_a_stream_that_changes_its_length_is_refused(later):
    data = np.random.default_rng(0).random((30, 5, 4))
    batches = np.split(data, 3)
    opened = []

    def stream():
        opened.append(len(opened))
        return iter(batches[:2] if len(opened) < 5 else batches[:later])

    says = f"The stream gave {10 * later} samples in this sweep, but 20 in an earlier one"
    with pytest.raises(InvalidInputError, match=says):
        StochasticCP(2, random_state=0, max_iter=9, tol=0).fit(stream)

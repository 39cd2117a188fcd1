"""AugmentedCP: what only it promises."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import polyad
from polyad import AugmentedCP, Checkpoint, LabelledTensor
from polyad.augmented.problem import AugmentedData, Preprocess
from polyad.augmented.signals import STFT, Jitter, Scaling
from polyad.augmented.solver import FullBatchSolver
from polyad.data.batches import MemorySource
from polyad.data.validation import as_tensor_input
from polyad.exceptions import DataWarning, InvalidInputError, InvalidTypeError
from polyad.report.plots import draw_patterns
from tests.augmented import twin

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

QUICK = {"max_iter": 4, "tol": 0.0, "random_state": 0}


def noisy(batch, generator):
    return batch + 0.3 * np.asarray(generator.normal(size=tuple(batch.shape)), batch.dtype)


def planted(n=60, shape=(4, 5, 6), rank=3, seed=0):
    """Return samples of a few components, with noise, about a mean that is not zero."""
    rng = np.random.default_rng(seed)
    components = twin.khatri_rao([rng.normal(size=(size, rank)) for size in shape])
    samples = rng.normal(size=(n, rank)) @ components.T + 0.3 * rng.normal(
        size=(n, len(components))
    )
    return samples.reshape(n, *shape) + 2.0


X = planted()


@parametrize_with_checks([AugmentedCP(1, max_iter=2, random_state=0)])
@pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning")
def test_scikit_learn(estimator, check):
    check(estimator)


# What is minimised.


@pytest.mark.parametrize("shape", [(7,), (4, 5), (4, 5, 6), (2, 3, 4, 5)])
@pytest.mark.parametrize("beta", [0.0, 0.1, 20.0])
def test_a_full_batch_only_descends(shape, beta):
    data = planted(n=20, shape=shape, rank=2)
    model = AugmentedCP(2, augment=noisy, beta=beta, batch_size=None, **{**QUICK, "max_iter": 30})
    history = np.asarray(model.fit(data).history_.objective)
    assert len(history) == 31
    assert (np.diff(history) <= 1e-10 * np.abs(history[0])).all()
    assert history[-1] < history[0]
    assert model.objective_ == pytest.approx(history[-1], rel=1e-9)


def test_the_objective_is_that_of_the_paper():
    twins = noisy(X, np.random.default_rng(1))
    n = len(X)
    model = AugmentedCP(3, augment=twins, beta=0.3, gamma=2.0, batch_size=None, **QUICK).fit(X)
    source = MemorySource(as_tensor_input(X), n)
    problem = AugmentedData(source, twins, Preprocess(None, None), center=True)
    centre = problem.centre()
    solver = FullBatchSolver(problem, model._settings(None), centre)
    state = solver.begin([f.copy() for f in model.factors_[1:]], seed=0, n_steps=1)
    size = centre.spread
    assert size == pytest.approx(np.mean(np.sum((X - X.mean(0)) ** 2, axis=(1, 2, 3))))
    matrices = [(own - X.mean(0)).reshape(n, -1) / np.sqrt(size) for own in (X, twins)]
    rows = [state.rows, state.twin_rows]
    expected = twin.objective(*matrices, rows, state.factors, 1e-3, 0.3 * n, 2.0)
    assert n * solver.objective(state) == pytest.approx(size * expected, rel=1e-10)
    record = solver.diagnostics(state)
    total = sum(record[key] for key in ("residual", "twin_residual", "ridge", "alignment"))
    assert total == pytest.approx(solver.objective(state), rel=1e-12)
    cosines = twin.normalized(rows[0]) @ twin.normalized(rows[1]).T
    assert record["twin_cosine"] == pytest.approx(np.trace(cosines) / n)
    others = (cosines.sum() - np.trace(cosines)) / (n * (n - 1))
    assert record["other_cosine"] == pytest.approx(others)


def test_without_self_supervision_it_is_a_decomposition_of_both():
    """beta = 0 is ridge ALS of samples and twins, one after the other."""
    twins = noisy(X, np.random.default_rng(1))
    options = {**QUICK, "batch_size": None, "center": False, "init": "svd"}
    start = [f for f in AugmentedCP(3, **{**options, "max_iter": 1}).fit(X).factors_]
    options["init"] = start
    both = AugmentedCP(3, augment=twins, beta=0.0, metric=None, **options).fit(X)
    options["init"] = [np.concatenate([start[0], start[0]]), *start[1:]]
    joined = AugmentedCP(3, **options).fit(np.concatenate([X, twins]))
    ratio = np.mean(X**2) / np.mean(np.concatenate([X, twins]) ** 2)
    assert ratio < 1  # alpha is in the unit of the samples, which differs a little
    for mine, theirs in zip(both.factors_[1:], joined.factors_[1:], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_exact_data_is_recovered():
    rng = np.random.default_rng(0)
    factors = [rng.normal(size=(size, 2)) for size in (30, 4, 5)]
    data = np.einsum("nr,ir,jr->nij", *factors)
    init = [own + 0.05 * rng.normal(size=own.shape) for own in factors]
    model = AugmentedCP(
        2, alpha=0.0, center=False, batch_size=None, init=init, max_iter=200, tol=0.0
    )
    assert model.fit(data).score(data) > 1 - 1e-10


def test_one_component_is_the_same_for_every_beta():
    options = {"augment": noisy, "batch_size": 20, **{**QUICK, "max_iter": 1}}
    none, much = (AugmentedCP(1, beta=beta, **options).fit(X) for beta in (0.0, 50.0))
    np.testing.assert_allclose(none.factors_[1], much.factors_[1], rtol=1e-9)


def test_self_supervision_draws_twins_together():
    options = {"augment": noisy, "batch_size": None, **{**QUICK, "max_iter": 20}}
    none, some = (
        AugmentedCP(3, beta=beta, **options).fit(X).history_.to_frame().iloc[-1]
        for beta in (0.0, 1.0)
    )
    assert 1 - some["twin_cosine"] < 0.5 * (1 - none["twin_cosine"])
    assert some["residual"] > none["residual"]


def test_the_unit_of_the_data_does_not_matter():
    one, other = (
        AugmentedCP(3, augment=Scaling(0.3), batch_size=20, **QUICK).fit(
            unit * X.reshape(60, 4, 30)
        )
        for unit in (1.0, 1e-9)
    )
    for mine, theirs in zip(one.factors_, other.factors_, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)
    assert other.objective_ == pytest.approx(1e-18 * one.objective_, rel=1e-9)
    features = one.transform(X.reshape(60, 4, 30))
    np.testing.assert_allclose(
        features, other.transform(1e-9 * X.reshape(60, 4, 30)), rtol=1e-6, atol=1e-9
    )


# Features.


def test_features_are_linear_and_come_back():
    model = AugmentedCP(3, augment=noisy, **QUICK).fit(X)
    mean, features = model.mean_, model.transform(X)
    np.testing.assert_allclose(model.transform(X[:5]), features[:5], rtol=1e-9, atol=1e-12)
    half = model.transform(0.5 * (X[:1] + X[1:2]))
    np.testing.assert_allclose(half, 0.5 * (features[:1] + features[1:2]), atol=1e-12)
    np.testing.assert_allclose(model.transform(mean[None]), 0.0, atol=1e-12)
    coefficients = model.factors_[0] * model.weights_
    np.testing.assert_allclose(features, coefficients @ model.metric_, atol=1e-10)
    assert np.mean(features**2) == pytest.approx(1.0)
    basis = model.components_.reshape(3, -1)
    ridge = np.linalg.inv(basis @ basis.T + 1e-3 * np.eye(3))
    np.testing.assert_allclose(
        coefficients, (X - mean).reshape(60, -1) @ basis.T @ ridge, atol=1e-9
    )
    expected = mean + np.tensordot(coefficients, model.components_, axes=1)
    np.testing.assert_allclose(model.inverse_transform(features), expected, atol=1e-9)
    plain = AugmentedCP(3, augment=noisy, metric=None, **QUICK).fit(X)
    np.testing.assert_allclose(plain.transform(X), coefficients, atol=1e-9)


def test_the_metric_discounts_what_augmentation_changes():
    """One direction of the samples is what augmentation adds: its feature comes last."""
    rng = np.random.default_rng(0)
    patterns = np.linalg.qr(rng.normal(size=(30, 3)))[0].T
    data = rng.normal(size=(300, 3)) @ (np.array([[3.0], [2.0], [1.0]]) * patterns)

    def disturb(batch, generator):
        return batch + 3.0 * generator.normal(size=(len(batch), 1)) * patterns[0]

    model = AugmentedCP(3, augment=disturb, random_state=0).fit(data)
    changed = model.transform(data + 3.0 * patterns[0]) - model.transform(data)
    assert np.abs(changed).max() < 0.5
    plain = clone(model).set_params(metric_floor=1e9).fit(data)
    changed = plain.transform(data + 3.0 * patterns[0]) - plain.transform(data)
    assert np.abs(changed).max() > 1.0
    sizes = np.std(model.transform(data), axis=0)
    last = np.corrcoef(model.transform(data)[:, -1], data @ patterns[0])[0, 1]
    assert sizes.argmin() == 2
    assert abs(last) > 0.95


def test_samples_and_components_in_another_order():
    twins = noisy(X, np.random.default_rng(1))
    start = [np.random.default_rng(2).normal(size=(n, 3)) for n in X.shape]
    options = {**QUICK, "batch_size": None, "metric": None}
    model = AugmentedCP(3, augment=twins, init=start, **options).fit(X)
    order = np.random.default_rng(3).permutation(len(X))
    other = AugmentedCP(3, augment=twins[order], init=start, **options).fit(X[order])
    np.testing.assert_allclose(other.transform(X), model.transform(X), rtol=1e-7, atol=1e-9)
    turned = [factor[:, [2, 0, 1]] for factor in start]
    other = AugmentedCP(3, augment=twins, init=turned, **options).fit(X)
    np.testing.assert_allclose(other.transform(X), model.transform(X), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 1e6])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning")
def test_a_ridge_that_leaves_nothing_does_not_raise_the_objective(alpha, dtype):
    """Rows without length have no direction: the alignment would be lost in one jump."""
    data = planted(n=20, rank=2).astype(dtype)
    options = {**QUICK, "max_iter": 30, "batch_size": None, "alpha": alpha}
    model = AugmentedCP(2, augment=noisy, beta=1.0, **options).fit(data)
    assert np.diff(model.history_.objective).max() <= 0
    assert np.isfinite(model.transform(data)).all()


def test_features_and_components_have_names_of_their_own():
    model = AugmentedCP(2, augment=noisy, **QUICK).fit(X)
    assert model.factor_table(1).columns.tolist() == ["component 0", "component 1"]
    assert model.get_feature_names_out().tolist() == ["augmentedcp0", "augmentedcp1"]


def test_the_report_draws_maps_over_the_last_two_modes():
    signals, _ = recordings()
    stft = STFT(n_fft=16, hop=8, sampling_rate=64.0)
    model = AugmentedCP(3, preprocess=stft, **QUICK).fit(signals)
    (section,) = model._report_sections()
    assert len(section.patterns) == 3
    (frequency, places), (time, _) = section.patterns[0].axes
    assert (frequency, time) == ("frequency", "time")
    np.testing.assert_array_equal(places, model.labels_[2])
    channel = model.top(0, "channel", 1)
    assert str(channel.index[0]) in section.patterns[0].title
    pattern = model.components_[0, list(model.labels_[1]).index(channel.index[0])]
    np.testing.assert_allclose(section.patterns[0].values, pattern, atol=1e-12)
    figure = draw_patterns(section.patterns)
    assert figure.axes[0].get_xlabel() == "time"
    assert AugmentedCP(1, **QUICK).fit(X.reshape(len(X), -1))._report_sections() == []


def test_the_report_tells_what_features_are_worth():
    section = AugmentedCP(3, augment=noisy, **QUICK).fit(X)._report_sections()[-1]
    assert section.table.index.tolist() == ["augmentedcp0", "augmentedcp1", "augmentedcp2"]
    assert (np.diff(section.table["ratio"]) < 0).all()
    assert np.mean(section.table["size"] ** 2) == pytest.approx(1.0)


def test_the_objective_is_that_of_the_model():
    model = AugmentedCP(3, batch_size=20, alpha=0.1, **QUICK).fit(X)
    rows = model.factors_[0] * model.weights_
    residual = np.sum((model.inverse_transform(rows) - X) ** 2)
    spread = np.mean(np.sum((X - X.mean(axis=0)) ** 2, axis=(1, 2, 3)))
    # The factors have three columns of length one each, in three modes and three batches.
    ridge = 0.1 * (np.sum(rows**2) + spread * 3 * 3 * 3)
    assert 60 * model.objective_ == pytest.approx(residual + ridge, rel=1e-9)


# Batches.


def test_batches_of_a_stream_are_batches_in_memory(tmp_path):
    options = {"augment": noisy, "batch_size": 16, "shuffle": False, **QUICK}
    edges = np.arange(5) * 60 // 4
    parts = [X[a:b] for a, b in pairwise(edges)]
    whole = AugmentedCP(3, **options).fit(X)
    np.save(tmp_path / "x.npy", X)
    for source in (parts, lambda: iter(parts), np.load(tmp_path / "x.npy", mmap_mode="r")):
        model = AugmentedCP(3, **options).fit(source)
        for mine, theirs in zip(model.factors_, whole.factors_, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_array_equal(model.metric_, whole.metric_)
        np.testing.assert_array_equal(model.transform(source), whole.transform(X))


def test_a_generator_is_read_once():
    parts = (X[k : k + 15] for k in range(0, 60, 15))
    model = AugmentedCP(3, augment=noisy, max_iter=1, shuffle=False, random_state=0).fit(parts)
    assert model.factors_[0].shape == (60, 3)
    assert model.score(X) > 0.9
    np.testing.assert_allclose(model.mean_, X.mean(0), atol=1e-12)
    with pytest.raises(InvalidInputError, match="max_iter=50"):
        AugmentedCP(3).fit(X[k : k + 15] for k in range(0, 60, 15))


def test_partial_fit_goes_on():
    model = AugmentedCP(3, augment=noisy, random_state=0)
    for k in range(0, 60, 15):
        model.partial_fit(X[k : k + 15])
    assert model.n_steps_ == 4
    assert model.factors_[0].shape == (60, 3)
    assert model.n_samples_seen_ == 60
    np.testing.assert_allclose(model.mean_, X.mean(0), atol=1e-12)
    assert model.score(X) > 0.94
    assert model.transform(X).shape == (60, 3)


@pytest.mark.parametrize("batch_size", [None, 20])
def test_seeds_reproduce_and_others_differ(batch_size):
    options = {"augment": noisy, "batch_size": batch_size, "max_iter": 3, "tol": 0.0}
    one, again, other = (AugmentedCP(3, random_state=s, **options).fit(X) for s in (0, 0, 1))
    np.testing.assert_array_equal(one.transform(X), again.transform(X))
    assert one.objective_ != other.objective_


def test_memory_is_that_of_a_few_batches(tmp_path):
    """4 MB of samples on disk, whose features are 18 MB, within 4 MB."""
    shape = (500, 8, 128)
    stored = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float64, shape)
    stored[:] = np.random.default_rng(0).normal(size=shape)
    stored.flush()
    stft = STFT(n_fft=16, hop=4)
    model = AugmentedCP(
        2, augment=Scaling(), preprocess=stft, batch_size=16, max_iter=1, random_state=0
    )
    samples = np.load(tmp_path / "x.npy", mmap_mode="r")
    model.fit(samples[:32])  # which imports what is needed
    assert 500 * stft(samples[:1]).nbytes > 16e6
    tracemalloc.start()
    features = model.fit(samples).transform(samples)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert features.shape == (500, 2)
    assert peak < 4e6


# Signals.


def recordings(n=40, seed=0):
    """Return signals of two kinds, and which they are."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(n) % 2
    times = np.arange(64)
    waves = np.sin(2 * np.pi * (3 + 5 * kinds[:, None, None]) * times / 64 + rng.random((n, 3, 1)))
    return waves + 0.2 * rng.normal(size=(n, 3, 64)), kinds


def test_raw_signals_in_a_pipeline():
    signals, kinds = recordings()
    model = AugmentedCP(
        4, augment=Jitter(), preprocess=STFT(n_fft=16, hop=8), max_iter=3, random_state=0
    )
    pipeline = make_pipeline(model, LogisticRegression()).fit(signals, kinds)
    assert pipeline.score(*recordings(seed=1)) > 0.9
    search = GridSearchCV(
        pipeline,
        {"augmentedcp__n_components": [2, 3], "augmentedcp__augment": [None, Jitter()]},
        cv=2,
    )
    assert search.fit(signals, kinds).best_score_ > 0.8
    table = clone(model).set_output(transform="pandas").fit_transform(signals)
    assert table.columns[0] == "augmentedcp0"


def test_labels_of_channels_frequencies_and_times(tmp_path):
    signals, _ = recordings()
    stft = STFT(n_fft=16, hop=8, sampling_rate=64.0)
    data = LabelledTensor(
        signals, modes=["window", "electrode", "time"], labels=[None, ["Fz", "Cz", "Pz"], None]
    )
    model = AugmentedCP(2, augment=Jitter(), preprocess=stft, max_iter=2, random_state=0).fit(data)
    modes, labels = stft.labels(["Fz", "Cz", "Pz"], 64)
    assert model.modes_ == ("window", *modes)
    for mode, own in zip(modes, labels, strict=True):
        assert model.factor_table(mode).index.tolist() == list(own)
    # Electrodes in another order are put right.
    turned = data.align({"electrode": ["Pz", "Fz", "Cz"]})
    np.testing.assert_allclose(model.transform(turned), model.transform(data), atol=1e-12)
    with pytest.raises(InvalidInputError, match="was fitted to the size 64"):
        model.transform(signals[:, :, :50])
    model.save(tmp_path / "model")
    loaded = polyad.load(tmp_path / "model")
    assert loaded.get_params()["preprocess"] == stft
    np.testing.assert_array_equal(loaded.transform(data), model.transform(data))


@pytest.mark.parametrize("batch_size", [7, None])
@pytest.mark.parametrize(
    "stored",
    [
        lambda X: np.repeat(X, 2, axis=2)[:, :, ::2],
        lambda X: np.ascontiguousarray(X[::-1, ::-1, ::-1])[::-1, ::-1, ::-1],
        np.asfortranarray,
    ],
)
def test_numbers_do_not_depend_on_how_they_are_stored(stored, batch_size):
    """Also with one sample in the last block or batch, whose entries NumPy would not copy."""
    X = planted(n=50, shape=(1, 12_000) if batch_size is None else (4, 5))[:49]
    other = stored(X)
    assert (other == X).all()
    models = [
        AugmentedCP(2, augment=turned, batch_size=batch_size, **QUICK).fit(own)
        for own in (X, other)
    ]
    assert models[0].objective_ == pytest.approx(models[1].objective_, rel=1e-9)
    for own in (slice(None), slice(1)):
        found = models[1].transform(other[own])
        np.testing.assert_allclose(models[0].transform(X[own]), found, rtol=1e-6, atol=1e-9)


def turned(batch, _generator):
    return batch[::-1, :, ::-1]


def test_channels_in_any_unit_have_the_same_features():
    signals, _ = recordings()
    options = {"augment": Jitter(0.1), "preprocess": STFT(n_fft=16, hop=8), **QUICK}
    one = AugmentedCP(2, **options).fit_transform(signals)
    other = AugmentedCP(2, **options).fit_transform(1e-6 * signals)
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_a_function_of_ones_own_is_not_in_a_file(tmp_path):
    model = AugmentedCP(2, preprocess=lambda batch: batch[:, :2], **QUICK).fit(X)
    model.save(tmp_path / "model")
    with pytest.raises(InvalidInputError, match="Set it again"):
        polyad.load(tmp_path / "model").transform(X)


@pytest.mark.parametrize("batch_size", [None, 16])
def test_a_checkpoint_goes_on_to_the_same_bits(tmp_path, batch_size):
    options = {"augment": Scaling(0.2), "batch_size": batch_size, "random_state": 0, "tol": 0.0}
    data = X.reshape(60, 4, 30)
    whole = AugmentedCP(3, max_iter=5, **options).fit(data)
    path = Checkpoint(tmp_path / "state", every=1)
    AugmentedCP(3, max_iter=2, checkpoint=path, **options).fit(data)
    resumed = AugmentedCP(3, max_iter=5, checkpoint=path, **options).fit(data)
    np.testing.assert_array_equal(resumed.transform(data), whole.transform(data))
    assert resumed.history_.objective == whole.history_.objective


# torch.


@pytest.mark.parametrize("batch_size", [None, 16])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_torch_has_the_same_numbers(batch_size, dtype):
    torch = pytest.importorskip("torch", reason="needs torch")
    data = X.reshape(60, 4, 30).astype(dtype)
    options = {**QUICK, "max_iter": 2}
    model = AugmentedCP(3, augment=Scaling(0.2), batch_size=batch_size, **options)
    expected = model.fit_transform(data)
    given = torch.asarray(data)
    found = clone(model).fit(given)
    features = found.transform(given)
    assert isinstance(features, torch.Tensor)
    assert all(isinstance(factor, torch.Tensor) for factor in found.factors_)
    assert features.dtype == given.dtype
    tolerance = 1e-8 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(features.numpy(), expected, atol=tolerance)
    assert isinstance(found.inverse_transform(features), torch.Tensor)


# Hazards.


def test_silent_channels_constant_samples_and_a_last_batch_of_one():
    data = X[:33].copy()
    data[:, 1] = 0.0
    data[5] = data.mean(axis=0)
    data[7] = 0.0
    model = AugmentedCP(3, augment=noisy, batch_size=16, shuffle=False, **QUICK)
    features = model.fit([data[:16], data[16:32], data[32:]]).transform(data)
    assert np.isfinite(features).all()
    only = AugmentedCP(3, batch_size=16, **QUICK).fit(data)
    np.testing.assert_allclose(only.factors_[1][1], 0.0, atol=1e-12)


def test_samples_that_are_all_the_same_are_told():
    data = np.full((10, 4, 3), 0.1) + np.arange(3)
    with pytest.warns(DataWarning, match="all samples are the same"):
        model = AugmentedCP(2, **QUICK).fit(data)
    assert np.isfinite(model.transform(data)).all()
    np.testing.assert_allclose(model.inverse_transform(model.transform(data)), data)


def test_samples_that_are_all_the_same_are_told_over_several_batches():
    data = np.repeat(np.random.default_rng(0).normal(size=(1, 4, 3)), 20, axis=0)
    with pytest.warns(DataWarning, match="all samples are the same"):
        AugmentedCP(2, batch_size=8, **QUICK).fit(data)


def test_samples_that_are_not_finite_are_named():
    data = X.copy()
    data[[3, 17], 0, 0, 0] = np.nan
    with pytest.raises(InvalidInputError, match=r"2 samples \(3, 17\)"):
        AugmentedCP(2).fit(data)
    with pytest.raises(InvalidInputError, match="takes no missing entries"):
        AugmentedCP(2).fit(X, mask=np.isfinite(data))

    def broken(batch):
        return np.where(np.arange(len(batch))[:, None, None, None] % 30 == 4, np.inf, batch)

    with pytest.raises(InvalidInputError, match=r"after preprocess, or too large: 4, 34"):
        AugmentedCP(2, preprocess=broken, batch_size=60, **QUICK).fit(X)


@pytest.mark.parametrize(
    ("parameters", "error", "match"),
    [
        ({"augment": "noise"}, InvalidTypeError, "augment='noise'"),
        ({"augment": X[:5]}, InvalidInputError, "needs a twin for each"),
        ({"augment": lambda batch, _: batch[:1]}, InvalidInputError, "augment returned an array"),
        ({"augment": lambda batch, _: None}, InvalidTypeError, "augment returned a NoneType"),
        ({"preprocess": 3}, InvalidTypeError, "preprocess=3"),
        ({"preprocess": STFT}, InvalidTypeError, "preprocess is the class STFT. Give an object"),
        ({"augment": Jitter}, InvalidTypeError, "augment is the class Jitter. Give an object"),
        ({"augment": lambda batch, _: batch + 1j}, InvalidTypeError, "real numbers"),
        ({"preprocess": lambda batch: batch.astype(str)}, InvalidTypeError, "real numbers"),
        ({"preprocess": lambda batch: batch[0]}, InvalidInputError, "preprocess returned"),
        ({"metric": "augmentation"}, InvalidInputError, "augment=None"),
        ({"batch_size": 1}, ValueError, "batch_size"),
        ({"gamma": -2.0}, ValueError, "gamma"),
    ],
)
def test_bad_parameters_are_refused(parameters, error, match):
    with pytest.raises(error, match=match):
        AugmentedCP(2, **parameters).fit(X)


def test_an_augmentation_may_write_to_what_it_is_given():
    def zero(batch, _generator):
        batch[:] = 0.0
        return batch

    data = X.copy()
    AugmentedCP(2, augment=zero, batch_size=60, **QUICK).fit(data)
    AugmentedCP(2, preprocess=lambda b: np.abs(b, out=b), scale_channels=False, **QUICK).fit(data)
    np.testing.assert_array_equal(data, X)


def test_all_at_once_needs_one_array():
    with pytest.raises(InvalidInputError, match="batch_size=None"):
        AugmentedCP(2, batch_size=None).fit([X[:30], X[30:]])

"""A checkpoint is continued by its own fit, and by no other; for every estimator."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_array

import polyad
from polyad import Checkpoint, LabelledTensor
from polyad.augmented.signals import STFT, Scaling
from polyad.exceptions import CheckpointError, PolyadError
from polyad.fitting.archive import read_archive, write_archive
from polyad.fitting.identity import digest_of
from polyad.losses import CustomLoss
from tests.estimators import CASES, FIRST

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::polyad.exceptions.DataWarning"),
]

# Two solvers of one estimator have states of their own.
NAMES = [*FIRST.values(), "AugmentedCP at once", "GeneralizedCP adam", "QMF adam"]
DENSE = CASES["CP"].data()
FACTORS = [np.random.default_rng(0).random((size, 2)) for size in DENSE.shape]
# Another value of each parameter that counts, but of those that are one of some words.
OTHER = {
    **{"n_components": 3, "n_init": 2, "random_state": 1, "fixed_modes": [1]},
    **{"ridge": 0.5, "sparsity": 0.1, "inner_iter": 3},
    **{"batch_size": 4, "learning_rate": 0.3, "epoch_iter": 7, "loss": "huber"},
    **{"similarities": [None, np.ones((6, 6)), None], "similarity_weight": 0.3},
    **{"shuffle": False, "graph": "complete", "graph_weight": 0.3},
    **{"label_weight": 0.3, "label_ridge": 0.01, "costs": "one-identity", "epsilon": 0.5},
    **{"marginal_penalty": 0.5, "sinkhorn_iter": 7, "n_quantiles": 5, "nonnegative": False},
    **{"divergence": "frobenius", "alpha0": 0.7, "kinds": "real", "refine": True},
    **{"anchors": [[0], [1], [2]], "n_partitions": 1},
    **{"augment": Scaling(), "preprocess": STFT(n_fft=2), "alpha": 0.5, "beta": 0.5, "gamma": 1.0},
    **{"tau": 0.5, "periodic": True, "axis_weights": (1.0, 2.0), "debias": True},
    **{
        "sharpness": 0.5,
        "rounds": 2,
        "metric": None,
        "metric_floor": 1.0,
        "center": False,
        "scale_channels": False,
    },
}
UNCOUNTED = {
    "n_jobs": 1,
    "verbose": 1,
    "callbacks": [lambda iteration: False],
    "time_budget": 1000.0,
    "warm_start": True,
    "memory_limit": 3.0,
}
LIMITS = {"max_iter", "tol"}
# Whose steps use their tol.
TOL_COUNTS = ("GeneralizedCP", "GeneralizedCP adam")


def counted(name):
    """Return the parameters of a case that count; one that is not known here has no other value."""
    return sorted(CASES[name].make().get_params().keys() - UNCOUNTED - LIMITS - {"checkpoint"})


def other_value(name, parameter):
    model = CASES[name].make()
    given = getattr(model, parameter)
    if parameter == "metric" and given == "sqeuclidean":
        return "cityblock"
    if parameter in OTHER:
        return OTHER[parameter]
    for rule in model._parameter_constraints[parameter]:
        if given in getattr(rule, "options", ()):
            return max(rule.options - {given})
    assert parameter == "init", f"give another value of {parameter}"
    return FACTORS if given == "random" else "random"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the estimator of a case, fitted, and a file with its checkpoint."""
    known = {}

    def fit(name):
        if name not in known:
            path = tmp_path_factory.mktemp("checkpoint") / "state"
            known[name] = CASES[name].fit(checkpoint=Checkpoint(path, every=1)), path
        return known[name]

    return fit


@pytest.fixture
def saved(finished, tmp_path):
    """Return a case, its estimator, and a copy of its checkpoint."""

    def copy(name):
        model, path = finished(name)
        return CASES[name], model, Path(shutil.copy(path, tmp_path / "state"))

    return copy


def numbers(model):
    if hasattr(model, "weights_"):
        return [model.weights_, *model.factors_]
    return [model.codes_, model.atoms_] if hasattr(model, "atoms_") else list(model.theta_)


def same(one, other):
    pairs = zip(numbers(one), numbers(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", FIRST.values())
def test_another_value_of_a_parameter_is_refused(saved, name):
    case, _, path = saved(name)
    before = path.read_bytes()
    for parameter in counted(name):
        changes = {parameter: other_value(name, parameter)}
        if parameter == "fixed_modes":  # which need factors; what differs is told of all
            changes["init"] = FACTORS
        if parameter in ("anchors", "n_partitions"):  # which belong to a method
            changes["method"] = "partitioned"
        if (name, parameter) == ("QMF", "batch_size"):  # which belongs to a solver
            changes["solver"] = "adam"
        told = rf"another fit; these differ: .*\b{parameter}\b"
        with pytest.raises(CheckpointError, match=told):
            case.fit(**changes, checkpoint=path)
        assert path.read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_what_changes_no_number_may_change(saved, name):
    case, model, path = saved(name)
    others = {own: value for own, value in UNCOUNTED.items() if own in case.make().get_params()}
    again = case.fit(**others, checkpoint=Checkpoint(path, every=2))
    assert same(again, model)
    # And it makes no difference for a fit that is not saved.
    assert same(case.fit(**{**others, "time_budget": None}), model)


def changed_entry(X):
    if isinstance(X, coo_array):
        return coo_array((np.append(X.data[:-1], 9.0), X.coords), shape=X.shape)
    X = X.copy()
    X.flat[3] += 1e-9
    return X


def with_gap(X):
    X = X.copy()
    X.flat[3] = np.nan
    return X


OTHER_DATA = {
    "twice": lambda X: 2 * X,
    "one entry": changed_entry,
    "float32": lambda X: X.astype(np.float32),
    "one less": lambda X: X[:-1] if isinstance(X, np.ndarray) else X.reshape(8, 3, 10),
    "labels": lambda X: LabelledTensor(X, modes=list("abc")[: X.ndim]),
    "missing": with_gap,
}


@pytest.mark.parametrize("name", NAMES)
def test_other_data_is_refused(saved, name):
    case, _, path = saved(name)
    for kind, change in OTHER_DATA.items():
        if kind != "missing" or case.takes_missing:
            with pytest.raises(CheckpointError, match=r"another fit; these differ: data \(of ot"):
                case.fit(change(case.data()), checkpoint=path)


@pytest.mark.parametrize("name", ["CP", "NonnegativeCP", "GeneralizedCP", "StochasticCP", "QMF"])
def test_the_unit_of_the_data_counts(tmp_path, name):
    """Fits divide data of such sizes by a power of two, after which both are the same."""
    case, path = CASES[name], tmp_path / "state"
    case.fit(case.data() * 2.0**40, checkpoint=path)
    with pytest.raises(CheckpointError, match="these differ: data "):
        case.fit(case.data() * 2.0**41, checkpoint=path)


def test_other_classes_of_samples_are_refused(saved):
    case, _, path = saved("SupervisedCP")
    with pytest.raises(CheckpointError, match="these differ: y "):
        case.make(checkpoint=path).fit(case.data(), case.classes(8)[::-1])


def test_another_mask_is_refused(saved, tmp_path):
    mask = DENSE > 0.1
    path = tmp_path / "masked"
    CASES["CP"].make(checkpoint=path).fit(DENSE, mask=mask)
    with pytest.raises(CheckpointError, match="these differ: data "):
        CASES["CP"].make(checkpoint=path).fit(DENSE, mask=DENSE > 0.2)
    # NaN says the same, and so it is the same data.
    CASES["CP"].make(checkpoint=path).fit(np.where(mask, DENSE, np.nan))


def test_another_class_is_refused(saved):
    case, _, path = saved("CP")
    # Its parameters are others too, which is not said.
    with pytest.raises(CheckpointError, match=r"these differ: class \([^)]*NonnegativeCP'\)\. "):
        polyad.NonnegativeCP(2, max_iter=3, tol=0.0, random_state=0, checkpoint=path).fit(
            case.data()
        )


# Functions and objects of one's own.


class Weighted:
    def __init__(self, weight):
        self.weight = weight

    def value(self, x, y):
        return self.weight * 0.5 * (x - y) ** 2

    def derivative(self, x, y):
        return self.weight * (y - x)


def custom(power, lower=-np.inf):
    return CustomLoss(
        lambda x, m: np.abs(m - x) ** power / power,
        lambda x, m: np.sign(m - x) * np.abs(m - x) ** (power - 1),
        lower=lower,
    )


OWN = [
    ("GeneralizedCP", lambda k: {"loss": custom(2 + 2 * k)}),
    ("GeneralizedCP", lambda k: {"loss": custom(2, lower=[-np.inf, 0.0][k])}),
    ("QMF", lambda k: {"divergence": Weighted(1.0 + k)}),
    ("WassersteinCP", lambda k: {"costs": {1: lambda data, mode: (1.0 + k) * (1 - np.eye(6))}}),
    ("WassersteinCP", lambda k: {"costs": {1: (1.0 + k) * (1 - np.eye(6))}}),
    ("CP", lambda k: {"init": [(1 + k) * factor for factor in FACTORS]}),
    ("CP", lambda k: {"random_state": np.random.RandomState(k)}),
    ("StochasticCP", lambda k: {"graph": (1.0 + k) * np.ones((8, 8))}),
]


@pytest.mark.parametrize(("name", "own"), OWN)
def test_own_objects_are_told_apart_and_known_again(tmp_path, name, own):
    case, path = CASES[name], tmp_path / "state"
    first = case.fit(**own(0), checkpoint=path)
    assert same(case.fit(**own(0), checkpoint=path), first)
    with pytest.raises(CheckpointError, match=rf"these differ: {next(iter(own(0)))} "):
        case.fit(**own(1), checkpoint=path)


def test_what_cannot_be_compared_is_refused_before_the_fit(tmp_path):
    steps = (number for number in range(3))
    loss = CustomLoss(lambda x, m: (m - x) ** 2 + 0 * next(steps), lambda x, m: 2 * (m - x))
    with pytest.raises(CheckpointError, match="loss has a generator inside"):
        CASES["GeneralizedCP"].fit(loss=loss, checkpoint=tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_without_a_seed_the_fit_goes_on_with_that_of_the_checkpoint(tmp_path):
    case = CASES["CP"]
    first = case.fit(random_state=None, init="random", checkpoint=tmp_path / "state")
    again = case.fit(random_state=None, init="random", checkpoint=tmp_path / "state")
    assert same(first, again)


def test_batches_that_can_be_read_again_are_compared(tmp_path):
    case, path = CASES["StochasticCP"], tmp_path / "state"
    first = case.fit(lambda: iter([DENSE[:4], DENSE[4:]]), checkpoint=path)
    assert same(case.fit(lambda: iter([DENSE[:4], DENSE[4:]]), checkpoint=path), first)
    with pytest.raises(CheckpointError, match="these differ: data "):
        case.fit(lambda: iter([DENSE[:4], 2 * DENSE[4:]]), checkpoint=path)


# Longer and shorter fits.


@pytest.mark.parametrize("name", NAMES)
def test_more_iterations_go_on_and_fewer_are_refused(saved, name):
    case, _, path = saved(name)
    longer = case.fit(max_iter=5, checkpoint=path)
    whole = case.fit(max_iter=5)
    assert same(longer, whole)
    assert longer.history_.objective == whole.history_.objective
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"has 5 iterations, .* ends after 4"):
        case.fit(max_iter=4, checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TOL_COUNTS])
def test_a_smaller_tol_goes_on_and_a_larger_one_is_refused(tmp_path, name):
    case, path = CASES[name], tmp_path / "state"
    rough = case.fit(max_iter=60, tol=0.2, checkpoint=path)
    fine = case.fit(max_iter=60, tol=1e-5, checkpoint=path)
    assert same(fine, case.fit(max_iter=60, tol=1e-5))
    assert fine.n_iter_ > rough.n_iter_
    with pytest.raises(CheckpointError, match=rf"ends after {rough.n_iter_}"):
        case.fit(max_iter=60, tol=0.2, checkpoint=path)


@pytest.mark.parametrize("name", TOL_COUNTS)
def test_a_tol_that_the_steps_use_counts(saved, name):
    case, _, path = saved(name)
    with pytest.raises(CheckpointError, match="these differ: tol"):
        case.fit(tol=1e-3, checkpoint=path)


@pytest.mark.parametrize("change", [{"max_iter": 4}, {"tol": 1e-3}])
def test_of_several_fits_none_is_prolonged(tmp_path, change):
    case = CASES["CP"]
    case.fit(n_init=2, checkpoint=tmp_path / "state")
    told = rf"these differ: {next(iter(change))} .*\. A fit of several starts .* keeps the max_iter"
    with pytest.raises(CheckpointError, match=told):
        case.fit(n_init=2, **change, checkpoint=tmp_path / "state")


# Damaged and edited files.


@pytest.mark.parametrize("part", range(4))
def test_a_damaged_file_is_refused_or_gives_the_same(saved, part):
    case, model, path = saved("CP")
    whole = path.read_bytes()
    generator = np.random.default_rng(part)
    for _ in range(40):
        data = bytearray(whole)
        kind = generator.integers(4)
        place = int(generator.integers(len(data)))
        if kind == 0:
            data[place] ^= 1 << int(generator.integers(8))
        elif kind == 1:
            del data[place:]
        elif kind == 2:
            data[place : place + 8] = generator.bytes(8)
        else:
            del data[place : place + int(generator.integers(1, 50))]
        path.write_bytes(data)
        try:
            found = case.fit(checkpoint=path)
        except CheckpointError:
            continue
        assert same(found, model)


def places(value, where=()):
    """Give the place of everything inside of a content, containers too."""
    yield where
    if isinstance(value, polyad.History):
        yield from places(value.records, (*where, "records"))
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from places(item, (*where, key))


def replaced(value, where, change):
    """Return a content with something else in one place."""
    if not where:
        return change(value)
    key, rest = where[0], where[1:]
    if isinstance(value, polyad.History):
        return polyad.History(replaced(value.records, rest, change))
    if isinstance(value, dict):
        changed = {**value, key: replaced(value[key], rest, change)}
        return {name: item for name, item in changed.items() if item is not LEFT_OUT}
    items = [replaced(item, rest, change) if k == key else item for k, item in enumerate(value)]
    return type(value)(item for item in items if item is not LEFT_OUT)


LEFT_OUT = object()


def worse(value, generator):
    """Return something that is not what a fit has in a place."""
    choices = [LEFT_OUT, None, "text", -1, 10**30, 0.5, float("nan"), True, [], {}, [value]]
    if isinstance(value, np.ndarray):
        choices += [value[:-1], value[None], value.astype(np.float32), value * np.nan]
        choices += [value.astype(str), value.astype(complex), np.zeros(0)]
    return choices[generator.integers(len(choices))]


def edited(path, generator, *, forged):
    content = read_archive(path, "checkpoint")
    digest = content.pop("digest")
    where = list(places(content))
    place = where[generator.integers(1, len(where))]
    try:
        content = replaced(content, place, lambda value: worse(value, generator))
        write_archive(path, "checkpoint", {**content, "digest": digest})
    except (PolyadError, TypeError, ValueError):  # nothing that an archive holds
        return False
    if forged:
        content = read_archive(path, "checkpoint")
        content.pop("digest")
        write_archive(path, "checkpoint", {**content, "digest": digest_of(content)})
    return True


@pytest.mark.parametrize("part", range(3))
def test_an_edited_file_is_refused_or_gives_the_same(saved, part):
    case, model, path = saved("CP")
    whole = path.read_bytes()
    generator = np.random.default_rng(part)
    for _ in range(30):
        path.write_bytes(whole)
        if not edited(path, generator, forged=False):
            continue
        try:
            found = case.fit(checkpoint=path)
        except CheckpointError:
            continue
        assert same(found, model)


@pytest.mark.parametrize("name", NAMES)
def test_an_edited_file_that_hides_it_is_refused_or_harmless(saved, name):
    """Whoever edits a file and its digest gets what is written there, but no other error."""
    case, _, path = saved(name)
    whole = path.read_bytes()
    generator = np.random.default_rng(1)
    for _ in range(8):
        path.write_bytes(whole)
        if edited(path, generator, forged=True):
            try:
                case.fit(max_iter=4, checkpoint=path)
            except CheckpointError:
                continue


def test_a_model_file_is_left_alone(saved, tmp_path):
    case, model, _ = saved("CP")
    path = tmp_path / "model"
    model.save(path)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"left alone: .* is a polyad model file"):
        case.fit(checkpoint=path)
    assert path.read_bytes() == before

"""The JAX front: gradients of every argument, transformations, types, errors."""

import importlib
import inspect
import sys
from functools import cache
from threading import Thread

import numpy as np
import pytest

from polyad import soft
from polyad.exceptions import InvalidInputError, InvalidTypeError, MissingPackageError

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from polyad.soft import jax as soft_jax  # noqa: E402
from polyad.soft import plans  # noqa: E402

GENERATOR = np.random.default_rng(0)
X = GENERATOR.random((2, 6))
ARGUMENTS = {
    "soft_rank": {"x": X, "weights": GENERATOR.random(6) + 0.1, "target_weights": np.ones((2, 4))},
    "soft_sort": {"x": X, "weights": GENERATOR.random((2, 6)) + 0.1, "target_weights": np.ones(4)},
    "soft_quantile": {"x": X, "levels": np.array([0.2, 0.7]), "weights": np.arange(1.0, 7.0)},
    "quantile_normalize": {
        **{"x": X, "quantiles": np.array([0.0, 1.0, 2.5, 7.0])},
        **{"weights": GENERATOR.random(6) + 0.1, "target_weights": GENERATOR.random((2, 4)) + 0.1},
    },
}
QUARTIC = soft.Cost(lambda x, y: (x - y) ** 4, lambda x, y: 4 * (x - y) ** 3)
SETTINGS = [
    {"epsilon": 0.1, "tol": 1e-13},
    {"epsilon": 0.02, "tol": 1e-13, "squash": False},
    {"epsilon": 0.1, "n_iter": 3},
    {"epsilon": 0.1, "tol": 1e-13, "cost": QUARTIC},
]
# JAX compiles for each pair, but settings go through the same code for all operators: each has
# one of them for its values and its differences, which NumPy's gradients agree with too.
LABELS = ["solved", "plain", "iterated", "quartic"]
PAIRS = [
    pytest.param(name, SETTINGS[k], id=f"{name}-{LABELS[k]}") for k, name in enumerate(ARGUMENTS)
]
NAMES = pytest.mark.parametrize("name", ARGUMENTS)


@pytest.fixture(autouse=True, scope="module")
def quick_compiling():
    """Everything is called a few times only: compiling is what takes time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def of_arrays(name, **settings):
    """Return an operator as a function of its arrays by position, and these."""
    function = with_settings(name, *settings.items())
    return function, tuple(jnp.asarray(array) for array in ARGUMENTS[name].values())


@cache
def with_settings(name, *settings):
    """Return one function for equal settings: JAX compiles it once."""

    def function(*values):
        arrays = dict(zip(ARGUMENTS[name], values, strict=True))
        return getattr(soft_jax, name)(**arrays, **dict(settings))

    return function


@pytest.mark.parametrize(("name", "settings"), PAIRS)
def test_values_and_gradients_are_those_of_numpy(x64, name, settings):
    function, arrays = of_arrays(name, **settings)
    value, pullback = soft.vjp(getattr(soft, name), **ARGUMENTS[name], **settings)
    G = np.random.default_rng(1).normal(size=value.shape)
    expected = pullback(G)

    found, pull = jax.vjp(jax.jit(function), *arrays)
    np.testing.assert_allclose(found, value, rtol=1e-12)
    for argument, gradient in zip(ARGUMENTS[name], pull(jnp.asarray(G)), strict=True):
        assert gradient.dtype == jnp.float64
        np.testing.assert_allclose(gradient, getattr(expected, argument), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(function(*arrays), found)


@pytest.mark.parametrize(("name", "settings"), PAIRS)
def test_differences_agree(x64, name, settings):
    function, arrays = of_arrays(name, **settings)
    check_grads(jax.jit(function), arrays, order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "n_iter"), [("soft_quantile", 2), ("quantile_normalize", None)])
def test_mapping_is_looping(x64, name, n_iter):
    """Every argument has a batch of its own, also the levels."""
    function, arrays = of_arrays(name, epsilon=0.1, n_iter=n_iter)
    batches = [np.stack([array, 0.6 * np.asarray(array)]) for array in arrays]

    def loss(*values):
        value = function(*values)
        return (value**2).sum(), value

    gradient = jax.value_and_grad(loss, tuple(range(len(arrays))), has_aux=True)
    (_, values), gradients = jax.jit(jax.vmap(gradient))(*batches)
    alone = jax.jit(gradient)
    for i in range(2):
        (_, value), wanted = alone(*(batch[i] for batch in batches))
        np.testing.assert_allclose(values[i], value, rtol=1e-9)
        for found, expected in zip(gradients, wanted, strict=True):
            np.testing.assert_allclose(found[i], expected, rtol=1e-7, atol=1e-9)


def test_mapping_over_some_arguments_and_twice(x64):
    x = jnp.asarray(np.random.default_rng(2).normal(size=(3, 2, 7)))
    levels = jnp.array([0.3, 0.5])
    expected = soft.soft_quantile(np.asarray(x), np.asarray(levels))

    def each(x, level):
        return soft_jax.soft_quantile(x, level)

    over_levels = jax.vmap(each, in_axes=(None, 0))
    over_all = jax.vmap(jax.vmap(over_levels, in_axes=(0, None)), in_axes=(0, None))
    found = jax.jit(over_all)(x, levels)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    by_level = jax.jit(jax.grad(lambda levels: over_levels(x[0, 0], levels).sum()))(levels)
    pullback = soft.vjp(soft.soft_quantile, np.asarray(x[0, 0]), np.asarray(levels))[1]
    np.testing.assert_allclose(by_level, pullback(np.ones(2)).levels, rtol=1e-7)


def test_any_axis(x64):
    x = np.random.default_rng(3).normal(size=(5, 2, 3))
    weights = np.random.default_rng(4).random((5, 2, 3))
    arguments = {"weights": weights, "n_targets": 4, "axis": 0}
    value, pullback = soft.vjp(soft.soft_sort, x, **arguments)
    sort = jax.jit(lambda x, w: soft_jax.soft_sort(x, **arguments | {"weights": w}))
    found, pull = jax.vjp(sort, x, weights)
    np.testing.assert_allclose(found, value, rtol=1e-12)
    expected = pullback(value)
    for gradient, name in zip(pull(found), ("x", "weights"), strict=True):
        np.testing.assert_allclose(gradient, getattr(expected, name), rtol=1e-9, atol=1e-9)
    median = jax.jit(lambda x: soft_jax.soft_quantile(x, axis=1))(x)
    np.testing.assert_allclose(median, soft.soft_quantile(x, axis=1), rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_types_are_kept(dtype):
    x = jnp.asarray(X).astype(dtype)
    value, pull = jax.vjp(jax.jit(soft_jax.soft_rank), x)
    (gradient,) = pull(jnp.ones_like(value))
    assert value.dtype == gradient.dtype == dtype
    expected = soft.soft_rank(np.asarray(x.astype(jnp.float32)))
    np.testing.assert_allclose(value.astype(jnp.float32), expected, rtol=1e-2)


def test_each_argument_keeps_its_type(x64):
    x, quantiles = jnp.asarray(X, jnp.float32), jnp.arange(4.0)
    value, pull = jax.vjp(jax.jit(soft_jax.quantile_normalize), x, quantiles)
    assert value.dtype == jnp.float32
    assert [gradient.dtype for gradient in pull(value)] == [jnp.float32, jnp.float64]


@pytest.mark.parametrize("is_double", [False, True])
def test_whole_numbers_give_the_default_type(is_double):
    with jax.enable_x64(is_double):
        value = jax.jit(lambda x: soft_jax.soft_sort(x, epsilon=1e-4))(jnp.array([3, 1, 2]))
        assert value.dtype == jnp.result_type(float)
        np.testing.assert_allclose(value, [1, 2, 3], rtol=1e-6)
        assert soft_jax.soft_quantile([3, 1, 2]).shape == ()


@pytest.mark.parametrize("epsilon", [1e-1, 1e-5])
def test_float32_gradients_are_those_of_float64(epsilon):
    x = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    quantiles = np.arange(8, dtype=np.float32)

    def loss(x):
        return (soft_jax.quantile_normalize(x, quantiles, epsilon=epsilon) ** 2).sum()

    gradient = jax.jit(jax.grad(loss))
    single = gradient(x)
    with jax.enable_x64(True):
        exact = np.asarray(gradient(x.astype(np.float64)))
    np.testing.assert_allclose(single, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def test_float64_reaches_threads_that_have_not_enabled_it():
    """The setting of a context belongs to its thread, and callbacks run in any."""
    found = {}
    with jax.enable_x64(True):
        x = jnp.asarray(X)
        compiled = jax.jit(jax.value_and_grad(lambda x: soft_jax.soft_sort(x)[0, 0])).lower(x)
        compiled = compiled.compile()
        expected = compiled(x)
    thread = Thread(target=lambda: found.update(it=jax.block_until_ready(compiled(x))))
    thread.start()
    thread.join()
    for part, wanted in zip(found["it"], expected, strict=True):
        assert part.dtype == np.float64
        np.testing.assert_array_equal(part, wanted)


@NAMES
def test_a_gradient_solves_once(x64, name, monkeypatch):
    """The way back uses the potentials of the way forth."""
    counts = []
    solve = plans.RowTransport.solve
    monkeypatch.setattr(
        plans.RowTransport, "solve", lambda *args, **kw: counts.append(1) or solve(*args, **kw)
    )
    function, arrays = of_arrays(name)
    jax.block_until_ready(jax.grad(lambda *a: function(*a).sum())(*arrays))
    assert len(counts) == 1


def test_equal_calls_are_compiled_once():
    """The callbacks of equal settings are equal: JAX finds what it has compiled."""
    tasks = []
    operate = soft_jax._operate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(soft_jax, "_operate", lambda task, a: tasks.append(task) or operate(task, a))
        for epsilon in (0.1, 0.1, 0.2):
            soft_jax.soft_rank(jnp.asarray(X), epsilon=epsilon)
    assert tasks[0] == tasks[1] != tasks[2]
    assert hash(tasks[0]) == hash(tasks[1])


def test_loops_and_recomputation(x64):
    def step(x, _):
        return soft_jax.quantile_normalize(x, jnp.arange(3.0) / 3, epsilon=0.3, squash=False), None

    def loss(x):
        return (jax.lax.scan(step, x, length=3)[0] ** 2).sum()

    x = jnp.asarray(X[0])
    check_grads(jax.jit(loss), (x,), order=1, modes=["rev"], atol=1e-5, rtol=1e-5)
    again = jax.jit(jax.grad(jax.checkpoint(loss)))(x)
    np.testing.assert_allclose(again, jax.jit(jax.grad(loss))(x), rtol=1e-9)


def test_gradient_descent_learns_quantiles():
    x = np.random.default_rng(0).normal(size=(2, 32)).astype(np.float32)
    wanted = np.exp(x)

    @jax.jit
    def step(gaps):
        def loss(gaps):
            normal = soft_jax.quantile_normalize(x, jnp.cumsum(jnp.exp(gaps)))
            return ((normal - wanted) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(gaps)
        return gaps - 0.05 * gradient, value

    gaps, losses = jnp.zeros(8), []
    for _ in range(40):
        gaps, value = step(gaps)
        losses.append(float(value))
    assert losses[-1] < 0.2 * losses[0]


def test_higher_and_forward_derivatives_are_refused():
    """Never a silent zero."""
    x = jnp.asarray(X[0])

    def loss(x):
        return (soft_jax.soft_rank(x) ** 2).sum()

    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(loss, (x,), (x,))
    for second in (jax.hessian(loss), jax.grad(lambda x: jax.grad(loss)(x).sum())):
        with pytest.raises(InvalidTypeError, match="first derivatives only"):
            jax.jit(second)(x)
    weigh = jax.grad(lambda s: jax.grad(lambda x: s * soft_jax.soft_rank(x)[0])(x).sum())
    with pytest.raises(InvalidTypeError, match="first derivatives only"):
        weigh(2.0)


def test_settings_are_plain_numbers_that_may_be_static():
    x = jnp.asarray(X)
    settings = {"epsilon": 0.1, "tol": 1e-6, "axis": 0, "n_iter": 3, "n_targets": 2}
    for name, value in settings.items():
        with pytest.raises(InvalidTypeError, match=f"{name} is traced by JAX.*static_argnames"):
            jax.jit(soft_jax.soft_rank)(x, **{name: value})
        known = jax.jit(soft_jax.soft_rank, static_argnames=name)(x, **{name: value})
        plain = soft_jax.soft_rank(x, **{name: jnp.asarray(value)})
        np.testing.assert_allclose(known, plain, rtol=1e-5)
    with pytest.raises(InvalidTypeError, match="width is traced"):
        jax.vmap(lambda width: soft_jax.soft_quantile(x, width=width))(jnp.array([0.1, 0.2]))


@pytest.mark.parametrize("wrap", [lambda function: function, jax.jit], ids=["plain", "jit"])
def test_what_is_known_is_refused_before_anything_runs(wrap):
    x = jnp.asarray(X)
    for arguments, text in (
        ({"weights": jnp.ones(5)}, "weights has 5 entries along its axis of values where 6"),
        ({"weights": jnp.ones((3, 6))}, r"weights has the shape \(3, 6\)"),
        ({"target_weights": jnp.ones(())}, r"target_weights has the shape \(\)"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            wrap(lambda **kw: soft_jax.soft_rank(x, **kw))(**arguments)
    for settings, text in (
        ({"epsilon": 0.0}, "epsilon=0.0 must be"),
        ({"axis": 2}, "axis=2 does not exist"),
        ({"n_targets": 0}, "n_targets=0"),
        ({"cost": "cubic"}, "cost='cubic'"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            wrap(lambda x, kw=settings: soft_jax.soft_sort(x, **kw))(x)
    with pytest.raises(InvalidInputError, match="width=0"):
        wrap(lambda x: soft_jax.soft_quantile(x, width=0))(x)
    with pytest.raises(InvalidInputError, match=r"quantiles has the shape \(3, 4\)"):
        wrap(soft_jax.quantile_normalize)(x, jnp.ones((3, 4)))
    with pytest.raises(InvalidTypeError, match="complex64"):
        wrap(soft_jax.soft_rank)(x + 1j)
    with pytest.raises(InvalidInputError, match="single number"):
        wrap(soft_jax.soft_rank)(1.0)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda v: soft_jax.soft_rank(jnp.array([1.0, v])), "x is nan"),
        (lambda v: soft_jax.soft_quantile(jnp.ones(2), jnp.array([0.5, v])), "levels is nan"),
        (lambda v: soft_jax.soft_quantile(jnp.ones(2), jnp.nan_to_num(v, nan=2.0)), "between 0"),
        (lambda v: soft_jax.soft_rank(jnp.ones(2), weights=jnp.array([1.0, v])), "weights is nan"),
        (
            lambda v: soft_jax.quantile_normalize(jnp.ones(2), jnp.array([1.0, jnp.nan_to_num(v)])),
            "quantiles decrease",
        ),
    ],
)
def test_bad_numbers_are_refused_when_they_are_known(call, text):
    with pytest.raises(InvalidInputError, match=text):
        call(jnp.nan)
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        jax.block_until_ready(jax.jit(call)(jnp.nan))


def test_a_missing_jax_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "polyad.soft.jax")
    with pytest.raises(MissingPackageError, match=r"pip install 'polyad\[jax\]'"):
        importlib.import_module("polyad.soft.jax")


def test_the_signatures_are_those_of_numpy():
    for name in soft_jax.__all__:
        own, other = (inspect.signature(getattr(m, name)).parameters for m in (soft_jax, soft))
        assert [(p.name, p.kind, p.default) for p in own.values()] == [
            (p.name, p.kind, p.default) for p in other.values()
        ]

import numpy as np

from polyad.fitting.adam import Adam, Moments, adam_entries

METHOD = Adam(0.9, 0.8)


def published(old, gradient, first, second, rate, count):
    """Return an update as it is written down, and the new moments."""
    mean, square = 0.9 * first + 0.1 * gradient, 0.8 * second + 0.2 * gradient**2
    size = np.sqrt(square / (1 - 0.8**count))
    move = rate * mean / (1 - 0.9**count) / np.where(size > 0, size, 1.0)
    return old - move, mean, square


def some_arrays(shape):
    generator = np.random.default_rng(0)
    old, first, gradient = generator.standard_normal((3, *shape))
    return old, gradient, first, generator.random(shape)


def test_a_block_of_entries_moves_as_published_and_stays_above_its_bound():
    old, gradient, first, second = some_arrays((40,))
    first[0] = second[0] = gradient[0] = 0.0
    out, moments = gradient.copy(), Moments(first.copy(), second.copy())
    adam_entries(old, (0, 40), METHOD.rule(0.1, 3, 0.0), moments, out)
    expected, mean, square = published(old, gradient, first, second, 0.1, 3)
    np.testing.assert_allclose(out, np.maximum(expected, 0.0))
    np.testing.assert_allclose(moments.first, mean)
    np.testing.assert_allclose(moments.second, square)


def test_a_step_moves_as_published_and_leaves_its_arguments_alone():
    given = some_arrays((5, 4))
    before = [part.copy() for part in given]
    old, gradient, first, second = given
    new, moments = METHOD.step(old, gradient, Moments(first, second), rate=0.1, count=2)
    for found, expected in zip((new, *moments), published(*given, 0.1, 2), strict=True):
        np.testing.assert_allclose(found, expected)
    for part, kept in zip(given, before, strict=True):
        np.testing.assert_array_equal(part, kept)


def test_what_is_zero_but_for_rounding_does_not_move():
    gradient = np.array([1e-5, 1e-21, 0.0])
    zeros = np.zeros(3)
    new, _ = METHOD.step(zeros, gradient, Moments(zeros, zeros), rate=1.0, count=1)
    np.testing.assert_allclose(new, [-1.0, 0.0, 0.0], atol=1e-5)

import numpy as np
import pytest

from polyad.core.threads import as_slices, cut, cut_by_work, cut_evenly, cut_into, cut_tiles

SIZES = [(0, 3), (1, 3), (3, 3), (7, 3), (100, 7), (5, 1000)]


@pytest.mark.parametrize(("n", "size"), SIZES)
def test_blocks_follow_each_other_and_miss_nothing(n, size):
    work = np.random.default_rng(0).integers(1, 9, n)
    tiles = [block[:2] for block in cut_tiles(n, size, 2)]
    for blocks in (
        cut(n, size),
        cut_evenly(n, size),
        cut_into(size, n),
        cut_by_work(work, 4),
        tiles,
    ):
        covered = [i for block in as_slices(blocks) for i in range(n)[block]]
        assert covered == list(range(n))
        assert all(first < last for first, last in blocks)


@pytest.mark.parametrize(("n", "size"), SIZES)
def test_blocks_have_the_size_that_was_asked_for(n, size):
    assert all(last - first == size for first, last in cut(n, size)[:-1])
    lengths = [last - first for first, last in cut_evenly(n, size)]
    assert len(lengths) == -(-n // size)
    assert all(length <= size for length in lengths)
    for parts in (lengths, [last - first for first, last in cut_into(size, n)]):
        assert max(parts, default=0) - min(parts, default=0) <= 1
    assert len(cut_into(size, n)) == min(size, n)
    assert [(last - first) % tile for first, last, tile in cut_tiles(n, size, 2)] == [
        0 for _ in cut_tiles(n, size, 2)
    ]


def test_a_range_may_begin_anywhere():
    assert cut(10, 4, 3) == [(3, 7), (7, 10)]
    assert cut_into(2, 10, 3) == [(3, 6), (6, 10)]


def test_blocks_have_about_equal_work():
    work = np.array([5, 1, 1, 1, 20, 1, 1])
    blocks = cut_by_work(work, 6)
    assert blocks == [(0, 2), (2, 5), (5, 7)]

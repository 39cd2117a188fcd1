"""Kernels: the cache of compiled versions is shared by processes that compile at the same time."""

import multiprocessing
import time

import numpy as np

from polyad.core.compiled import _SharedCacheFile, kernel


class SlowCacheFile(_SharedCacheFile):
    """Leaves time for others between the reading and the writing of the index."""

    def _save_index(self, overloads):
        time.sleep(0.1)
        super()._save_index(overloads)


def attributes(folder):
    return {
        "_cache_path": str(folder),
        "_index_name": "twice.nbi",
        "_index_path": str(folder / "twice.nbi"),
        "_data_name_pattern": "twice.{number:d}.nbc",
        "_source_stamp": 1,
        "_version": "1",
    }


def save(folder, key):
    SlowCacheFile(**attributes(folder)).save(key, f"the code of {key}")


def test_versions_that_several_processes_compile_at_once_are_all_kept(tmp_path):
    context = multiprocessing.get_context("spawn")
    keys = ["float32", "float64", "int64"]
    processes = [context.Process(target=save, args=(tmp_path, key)) for key in keys]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = {key: SlowCacheFile(**attributes(tmp_path)).load(key) for key in keys}
    assert found == {key: f"the code of {key}" for key in keys}


def test_kernels_use_that_cache_and_a_folder_that_cannot_be_locked_is_no_obstacle(tmp_path):
    @kernel
    def doubled(values):
        return 2.0 * values

    assert isinstance(doubled._cache._cache_file, _SharedCacheFile)
    missing = _SharedCacheFile(**attributes(tmp_path / "missing"))
    assert missing.load("float64") is None
    np.testing.assert_array_equal(doubled(np.ones(3)), np.full(3, 2.0))

"""Kernels: the cache of compiled versions is shared by processes that compile at the same time.

What a kernel computes does not depend on which others a process has compiled or loaded before.
"""

import fcntl
import importlib.util
import multiprocessing
import sys
import time
import types
from unittest import TestCase

import numpy as np
import pytest
from numba.core import event
from numba.core.errors import TypingError

from polyad.core.compiled import _SharedCacheFile, kernel, owning_part, part
from tests.forks import CONTEXT


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
    keys = ["float32", "float64", "int64"]
    processes = [CONTEXT.Process(target=save, args=(tmp_path, key)) for key in keys]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = {key: SlowCacheFile(**attributes(tmp_path)).load(key) for key in keys}
    assert found == {key: f"the code of {key}" for key in keys}


def load_or_compile(folder, out):
    file = SlowCacheFile(**attributes(folder))
    if file.load("float64") is None:
        time.sleep(0.5)
        file.save("float64", "the code")
        out.put("compiled")
    else:
        out.put("loaded")


def test_a_process_waits_for_what_another_one_compiles(tmp_path):
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    folder = tmp_path / "new"
    processes = [context.Process(target=load_or_compile, args=(folder, out)) for _ in range(3)]
    for process in processes:
        process.start()
    found = sorted(out.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert found == ["compiled", "loaded", "loaded"]


def test_nobody_waits_for_what_could_not_be_compiled(tmp_path):
    (tmp_path / "broken.py").write_text(
        "from polyad.core.compiled import kernel\n\n@kernel\ndef broken(x):\n    return x.unknown\n"
    )
    spec = importlib.util.spec_from_file_location("broken", tmp_path / "broken.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(TypingError):
        module.broken(np.ones(3))
    index = module.broken._cache._cache_file._index_path
    with open(f"{index}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_kernels_use_that_cache_and_a_folder_that_cannot_be_locked_is_no_obstacle(
    tmp_path, monkeypatch
):
    @kernel
    def doubled(values):
        return 2.0 * values

    assert isinstance(doubled._cache._cache_file, _SharedCacheFile)
    monkeypatch.setattr("polyad.core.compiled.os.makedirs", lambda *_, **__: None)
    missing = _SharedCacheFile(**attributes(tmp_path / "missing"))
    assert missing.load("float64") is None
    np.testing.assert_array_equal(doubled(np.ones(3)), np.full(3, 2.0))


CALLED = """
from polyad.core.compiled import kernel, part

@kernel
def called(x, y):
    total, least, spread = 0.0, x[0], 0.0
    for i in range(x.size):
        total += x[i] * y[i]
    for i in range(x.size):
        least = min(least, x[i] / (1.0 + y[i] * y[i]))
    for i in range(x.size):
        for j in range(y.size):
            spread += (x[i] - y[j]) * (x[i] - least) / (1.0 + total * total)
    return total + least + spread

@kernel
def calling(x, y):
    return called(x, y) + called(y, x) + called(x, x)

@part
def halved(x):
    return 0.5 * x

@part
def quartered(x):
    return halved(halved(x))

@kernel
def joined(x, y):
    for i in range(x.size):
        y[i] = quartered(x[i]) + halved(x[i])
"""


def made(folder, name="fresh"):
    (folder / "fresh.py").write_text(CALLED)
    spec = importlib.util.spec_from_file_location(name, folder / "fresh.py")
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh


def test_parts_go_into_the_kernels_that_call_them_and_nowhere_else(tmp_path):
    fresh = made(tmp_path)
    assert fresh.quartered(8.0) == 2.0  # a function of Python
    for x in (np.arange(4.0), np.arange(4.0, dtype=np.float32)):
        y = np.empty_like(x)
        fresh.joined(x, y)
        np.testing.assert_array_equal(y, 0.75 * x)
    kept = {path.name.partition("-")[0] for path in (tmp_path / "__pycache__").glob("*.nb*")}
    assert kept == {"fresh.joined"}
    again = made(tmp_path)  # from the cache, which has the parts in it
    again.joined(np.ones(4), y := np.empty(4))
    np.testing.assert_array_equal(y, np.full(4, 0.75))
    assert again.joined.stats.cache_hits


def test_a_kernel_has_its_own_copies_of_what_it_calls(tmp_path):
    """Copies that share a name are optimised in other ways, and one is run instead of another."""
    fresh = made(tmp_path)
    fresh.calling(np.ones(3), np.ones(3))
    library = next(iter(fresh.calling.overloads.values())).library
    copies = [
        function for function in library.get_defined_functions() if "calling" not in function.name
    ]
    assert any("called" in copy.name for copy in copies)
    assert {copy.linkage.name for copy in copies} == {"internal"}


def test_versions_for_types_that_are_no_more_are_compiled_again(tmp_path, monkeypatch):
    """As after an update that renames the type of an argument."""
    module = types.ModuleType("polyad_before")
    module.Old = type("Old", (tuple,), {"__module__": "polyad_before"})
    monkeypatch.setitem(sys.modules, "polyad_before", module)
    file = _SharedCacheFile(**attributes(tmp_path))
    file.save(module.Old, "before")
    assert file.load(module.Old) == "before"
    del module.Old
    assert file.load("new") is None
    file.save("new", "after")
    assert file.load("new") == "after"


def test_a_part_is_compiled_once_for_callers_of_all_kinds(tmp_path):
    compiled = []

    class Names(event.Listener):
        def on_start(self, started):
            compiled.append(started.data["dispatcher"].py_func.__name__)

        def on_end(self, ended):
            pass

    fresh = made(tmp_path)
    with event.install_listener("numba:compile", Names()):
        fresh.joined(np.ones(3), np.empty(3))
    assert sorted(compiled) == ["halved", "joined", "quartered"]


def test_a_part_that_is_given_arrays_to_hold_has_to_own_them():
    @owning_part
    def inner(x):
        return x[1:-1]

    @part
    def first(x):
        return inner(x)[0]

    @kernel
    def doubled(x):
        return 2.0 * first(x)

    with pytest.raises(TypeError, match="first makes arrays or returns them: let it be an own"):
        doubled(np.ones(4))


def test_long_compiling_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr("polyad.core.compiled._UNTOLD_SECONDS", 0.0)
    monkeypatch.setattr("polyad.core.compiled._watch.told", False)
    fresh = made(tmp_path, "polyad.fresh")
    with TestCase().assertLogs("polyad", "WARNING") as told:
        for x in (np.ones(3), np.ones(3, np.float32)):
            fresh.joined(x, np.empty_like(x))
    assert [message.partition(",")[0] for message in told.output] == [
        "WARNING:polyad:polyad is compiling"
    ]


def test_where_no_folder_can_be_written_kernels_are_compiled_and_that_is_told(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("numba.core.caching.CompileResultCacheImpl._locator_classes", [])
    monkeypatch.setattr("polyad.core.compiled._UNTOLD_SECONDS", 0.0)
    monkeypatch.setattr("polyad.core.compiled._watch.told", False)
    monkeypatch.setattr("polyad.core.compiled._watch.keeps", True)
    fresh = made(tmp_path, "polyad.fresh")
    x, y = np.ones(3), np.empty(3)
    with TestCase().assertLogs("polyad", "WARNING") as told:
        fresh.joined(x, y)
    np.testing.assert_array_equal(y, 0.75 * x)
    assert "NUMBA_CACHE_DIR" in told.output[0]

"""Processes of their own for tests: forks of one that has imported polyad, which takes seconds."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
CONTEXT = multiprocessing.get_context(METHOD)
CONTEXT.set_forkserver_preload(["tests.forks", "polyad.datasets.examples", "tests.estimators"])


def run(code, *arguments, timeout=120):
    """Run a program in a process of its own that has used nothing of polyad yet."""
    with tempfile.TemporaryDirectory() as folder:
        process = CONTEXT.Process(target=_run, args=(code, [str(a) for a in arguments], folder))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
        said = [(Path(folder) / name).read_text(encoding="utf-8") for name in ("out", "err")]
    return subprocess.CompletedProcess(code, process.exitcode, *said)


def _run(code, arguments, folder):
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        with open(f"{folder}/{name}", "wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<test>", "exec"), {"__name__": "__main__"})

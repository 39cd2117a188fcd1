"""``python -m polyad warm-up``: a fit that follows it compiles nothing."""

import pytest

from polyad.__main__ import main
from tests import forks

FITS = """
import sys, warnings
from numba.core.registry import CPUDispatcher
from polyad.cli import warm_up
from tests.estimators import CASES

def versions():
    return {
        (value.py_func.__qualname__, str(version))
        for module in [*sys.modules.values()] if module.__name__.startswith("polyad.")
        for value in vars(module).values() if isinstance(value, CPUDispatcher)
        for version in value.signatures
    }

for task in warm_up.TASKS:
    warm_up.compile_for(task)
warnings.simplefilter("ignore")
known = versions()
for case in CASES.values():
    case.fit()
print(len(known) > 50, sorted(versions() - known))
"""


def test_fits_need_nothing_that_is_not_compiled_by_then():
    done = forks.run(FITS, timeout=600)
    assert done.stdout.strip() == "True []", done.stderr


def test_the_command_runs_the_tasks_in_processes(monkeypatch, capsys):
    monkeypatch.setattr("polyad.cli.warm_up.TASKS", {"tables": None})
    assert main(["warm-up", "--jobs", "1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0].partition(" in ")[0] for line in told] == ["tables", "compiled"]


def test_a_command_is_needed(capsys):
    with pytest.raises(SystemExit):
        main([])
    assert "warm-up" in capsys.readouterr().err

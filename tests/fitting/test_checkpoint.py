import os
from pathlib import Path

import numpy as np
import pytest

from polyad.exceptions import CheckpointError, DataWarning, InvalidTypeError, Status
from polyad.fitting import Checkpoint, FitOptions, Resumable, fit_best
from polyad.fitting.checkpoint import digest
from tests.fitting.simple_solver import Halving, Point, ScriptedWithoutPromise, start

IDENTITY = {"method": "Halving", "n_components": 3}


def resumable(path, every=1, **identity):
    return Resumable(Checkpoint(path, every=every), {**IDENTITY, **identity}, Point)


def starts(number, seed):
    return Point(np.random.default_rng(seed).random(3) + number)


class KilledError(Exception):
    pass


def kill_after(n):
    count = [0]

    def callback(_news):
        count[0] += 1
        if count[0] == n:
            raise KilledError

    return callback


@pytest.mark.parametrize("killed_after", range(1, 14))
def test_resumed_fit_equals_uninterrupted_one(tmp_path, killed_after):
    seeds = [1, 2, 3]
    whole = fit_best(Halving(), starts, seeds, FitOptions(max_iter=5))
    options = FitOptions(max_iter=5, callbacks=(kill_after(killed_after),))
    path = tmp_path / "f"
    with pytest.raises(KilledError):
        fit_best(Halving(), starts, seeds, options, resumable=resumable(path))
    # Other seeds now, as with random_state=None: those of the checkpoint hold.
    resumed = fit_best(
        Halving(), starts, [7, 8, 9], FitOptions(max_iter=5), resumable=resumable(path)
    )
    assert np.array_equal(resumed.state.position, whole.state.position)
    assert resumed.history.objective == whole.history.objective
    assert resumed.status is whole.status


def test_the_best_state_survives_too(tmp_path):
    solver = ScriptedWithoutPromise([4.0, 1.0, 3.0, 2.0, 2.5])
    options = FitOptions(max_iter=4, callbacks=(kill_after(3),))
    with pytest.raises(KilledError):
        fit_best(solver, start, [1], options, resumable=resumable(tmp_path / "f"))
    result = fit_best(
        solver, start, [1], FitOptions(max_iter=4), resumable=resumable(tmp_path / "f")
    )
    assert result.state.position[0] == 1
    assert result.history.objective == [4.0, 1.0, 3.0, 2.0, 2.5]


def test_a_finished_fit_is_returned_at_once_and_can_be_prolonged(tmp_path):
    short = FitOptions(max_iter=2)
    fit_best(Halving(), starts, [1], short, resumable=resumable(tmp_path / "f"))
    calls = []
    same = fit_best(
        Halving(),
        starts,
        [1],
        FitOptions(max_iter=2, callbacks=(calls.append,)),
        resumable=resumable(tmp_path / "f"),
    )
    assert calls == []
    assert same.status is Status.MAX_ITER
    longer = fit_best(
        Halving(), starts, [1], FitOptions(max_iter=5), resumable=resumable(tmp_path / "f")
    )
    whole = fit_best(Halving(), starts, [1], FitOptions(max_iter=5))
    assert np.array_equal(longer.state.position, whole.state.position)
    assert longer.history.n_iter == 5


def test_a_checkpoint_of_another_fit_is_refused_and_named(tmp_path):
    fit_best(Halving(), starts, [1], FitOptions(), resumable=resumable(tmp_path / "f"))
    before = (tmp_path / "f").read_bytes()
    with pytest.raises(CheckpointError, match=r"n_components \(saved 3, now 4\)"):
        fit_best(
            Halving(),
            starts,
            [1],
            FitOptions(),
            resumable=resumable(tmp_path / "f", n_components=4),
        )
    assert (tmp_path / "f").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"my thesis"])
def test_a_file_of_the_user_is_never_overwritten(tmp_path, content):
    path = tmp_path / "thesis.txt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="left alone"):
        fit_best(Halving(), starts, [1], FitOptions(), resumable=resumable(path))
    assert path.read_bytes() == content


def test_missing_folder_is_refused_before_the_first_step(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        fit_best(Halving(), starts, [1], FitOptions(), resumable=resumable(tmp_path / "no" / "f"))


def test_a_full_disk_does_not_end_the_fit(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(DataWarning, match="could not be written") as caught:
        result = fit_best(
            Halving(), starts, [1], FitOptions(max_iter=5), resumable=resumable(tmp_path / "f")
        )
    assert len(caught) == 1
    assert result.history.n_iter == 5


def test_default_frequency_writes_at_least_at_the_end(tmp_path):
    fit_best(Halving(), starts, [1], FitOptions(), resumable=resumable(tmp_path / "f", every=None))
    assert (tmp_path / "f").exists()


def test_parameter_forms():
    checkpoint = Checkpoint("a")
    assert Checkpoint.of(checkpoint) is checkpoint
    assert Checkpoint.of(None) is None
    assert Checkpoint.of(Path("b")).path == Path("b")
    with pytest.raises(InvalidTypeError, match="give a path"):
        Checkpoint.of(3)
    with pytest.raises(CheckpointError, match="1 or more"):
        Checkpoint("a", every=0)


def test_digest_tells_values_shapes_and_types_apart():
    values = np.arange(6.0)
    names = {
        digest([values]),
        digest([values.reshape(2, 3)]),
        digest([values.astype(np.float32)]),
        digest([values[:5]]),
        digest([-values]),
        digest([values, values]),
        digest([np.zeros(0)]),
    }
    assert len(names) == 7
    assert digest([np.asfortranarray(values.reshape(2, 3))]) == digest([values.reshape(2, 3)])

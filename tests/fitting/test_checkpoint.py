import errno
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from polyad.exceptions import CheckpointError, DataWarning, InvalidTypeError
from polyad.fitting import Checkpoint, FitOptions, Resumable, Status, fit_best
from polyad.fitting import checkpoint as checkpoint_module
from tests.fitting.simple_solver import Halving, Point, ScriptedWithoutPromise, start

IDENTITY = {"class": "Halving", "n_components": 3}


def resumable(path, every=1, size=3, **identity):
    known = {**IDENTITY, **identity}
    return Resumable(Checkpoint(path, every=every), known, lambda: Point(np.zeros(size)))


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
        fit_best(solver, start, [1], options, resumable=resumable(tmp_path / "f", size=1))
    result = fit_best(
        solver, start, [1], FitOptions(max_iter=4), resumable=resumable(tmp_path / "f", size=1)
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


def test_a_name_that_no_file_can_have_is_refused_before_the_first_step(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be"):
        fit_best(Halving(), starts, [1], FitOptions(), resumable=resumable(tmp_path / ("x" * 300)))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="devices of Linux")
@pytest.mark.parametrize("device", ["/dev/full", "/dev/zero", "/dev/null", "/dev/urandom"])
def test_a_device_is_refused(device):
    with pytest.raises(CheckpointError, match="is a device, pipe or socket"):
        Checkpoint(device)


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="is a device, pipe or socket"):
        Checkpoint(tmp_path / "pipe")


def test_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(CheckpointError, match="is a device, pipe or socket"):
            Checkpoint("socket")


def test_a_folder_is_refused_also_if_it_was_none_before(tmp_path):
    with pytest.raises(CheckpointError, match="is a folder"):
        Checkpoint(tmp_path)
    late = resumable(tmp_path / "f")
    (tmp_path / "f").mkdir()
    with pytest.raises(CheckpointError, match="is a folder"):
        fit_best(Halving(), starts, [1], FitOptions(), resumable=late)


def test_a_path_that_no_file_has_is_refused():
    with pytest.raises(CheckpointError, match="no path that a file could have"):
        Checkpoint("a\0b")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_is_refused_before_the_fit(tmp_path, monkeypatch, number):
    def refuse(*_args, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    calls = []
    options = FitOptions(callbacks=(calls.append,))
    with pytest.raises(CheckpointError, match="cannot be written") as caught:
        fit_best(Halving(), starts, [1], options, resumable=resumable(tmp_path / "f"))
    assert os.strerror(number) in str(caught.value)
    assert calls == []


def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    fit_best(Halving(), starts, [1], FitOptions(), resumable=resumable(tmp_path / "f"))

    def refuse(*_args):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoint_module, "read_archive", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be read .*Permission denied"):
        fit_best(Halving(), starts, [1], FitOptions(), resumable=resumable(tmp_path / "f"))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fills_up_does_not_end_the_fit(tmp_path, monkeypatch, call):
    real, written = getattr(os, call), []

    def full_after_two(*arguments):
        written.append(arguments)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    path = tmp_path / "f"
    monkeypatch.setattr(os, call, full_after_two)
    with pytest.warns(DataWarning, match="could not be written") as caught:
        result = fit_best(Halving(), starts, [1], FitOptions(max_iter=5), resumable=resumable(path))
    monkeypatch.undo()
    assert len(caught) == 1
    assert result.history.n_iter == 5
    # What was written before the disk was full is whole, and the fit goes on from there.
    assert os.listdir(tmp_path) == ["f"]
    numbers = []
    options = FitOptions(max_iter=5, callbacks=(lambda news: numbers.append(news.number),))
    again = fit_best(Halving(), starts, [1], options, resumable=resumable(path))
    assert numbers == [3, 4, 5]
    assert np.array_equal(again.state.position, result.state.position)


@pytest.mark.parametrize("is_link", [False, True])
def test_a_second_fit_with_the_same_checkpoint_is_refused(tmp_path, is_link):
    path = second = tmp_path / "f"
    if is_link:
        second = tmp_path / "link"
        second.symlink_to(path)
    errors = []

    def fit_again(_news):
        with pytest.raises(CheckpointError, match="in use by another fit") as caught:
            fit_best(Halving(), starts, [1], FitOptions(), resumable=resumable(second))
        errors.append(caught)

    options = FitOptions(max_iter=2, callbacks=(fit_again,))
    fit_best(Halving(), starts, [1], options, resumable=resumable(path))
    assert len(errors) == 2
    # It is free again, also after an error.
    with pytest.raises(KilledError):
        fit_best(
            Halving(),
            starts,
            [1],
            FitOptions(max_iter=4, callbacks=(kill_after(1),)),
            resumable=resumable(path),
        )
    fit_best(Halving(), starts, [1], FitOptions(max_iter=4), resumable=resumable(second))
    assert sorted(os.listdir(tmp_path)) == ["f", "link"][: 1 + is_link]


@pytest.mark.parametrize(
    ("options", "end"), [(FitOptions(max_iter=3), 3), (FitOptions(max_iter=9, tol=0.8), 1)]
)
def test_a_checkpoint_that_is_longer_than_the_fit_is_refused(tmp_path, options, end):
    path = tmp_path / "f"
    long = FitOptions(max_iter=5, tol=1e-9)
    fit_best(Halving(), starts, [1], long, resumable=resumable(path))
    with pytest.raises(CheckpointError, match=rf"has 5 iterations, .* ends after {end}\."):
        fit_best(Halving(), starts, [1], options, resumable=resumable(path))


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

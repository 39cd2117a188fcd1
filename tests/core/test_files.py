"""Files that are replaced whole or not at all."""

import errno
import fcntl
import os
import stat
import subprocess
import sys

import pytest

from polyad.core.files import held, replacing
from polyad.exceptions import InvalidTypeError


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file(tmp_path):
    with replacing(tmp_path / "new") as stream:
        stream.write(b"text")
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "new").read_bytes() == b"text"
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("as_path", [str, os.fspath, lambda path: path])
def test_a_file_is_replaced_when_the_block_ends(tmp_path, as_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(as_path(path)) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_path_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with replacing("here") as stream:
        stream.write(b"text")
    assert (tmp_path / "here").read_bytes() == b"text"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, OSError])
def test_an_error_keeps_the_old_file_and_leaves_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_a_half():
        with replacing(path) as stream:
            stream.write(b"half of the ne")
            raise error

    with pytest.raises(error):
        write_a_half()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_leaves_no_file_where_there_was_none(tmp_path):
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "file"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space left"), replacing(path) as stream:
        stream.write(b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o027])
def test_a_new_file_follows_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        with replacing(tmp_path / "file"):
            pass
        assert os.umask(mask) == mask, "the umask was changed"
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "file") == 0o666 & ~mask


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_replaced_file_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    with replacing(path) as stream:
        stream.write(b"new")
        # Nobody else may read what is not complete.
        (temporary,) = (p for p in tmp_path.iterdir() if p != path)
        assert mode_of(temporary) == 0o600
    assert mode_of(path) == mode


def test_a_missing_folder_is_named_before_any_work(tmp_path):
    entered = False
    with (
        pytest.raises(FileNotFoundError, match=r"folder of file does not exist") as caught,
        replacing(tmp_path / "nowhere" / "file"),
    ):
        entered = True
    assert not entered
    assert caught.value.filename == str(tmp_path / "nowhere")
    assert os.listdir(tmp_path) == []


def test_a_folder_is_named_before_any_work_and_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    entered = False
    with (
        pytest.raises(IsADirectoryError, match=r"This is a folder.*path of a file.*folder'$"),
        replacing(tmp_path / "folder"),
    ):
        entered = True
    assert not entered
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize("name", ["x" * 250, "ü" * 120, "with space", ".hidden", "a.b.c"])
def test_any_name_that_the_system_allows(tmp_path, name):
    for content in (b"first", b"second"):
        with replacing(tmp_path / name) as stream:
            stream.write(content)
    assert (tmp_path / name).read_bytes() == b"second"
    assert os.listdir(tmp_path) == [name]


def test_two_writers_at_once_do_not_mix(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as first, replacing(path) as second:
        first.write(b"aaaa")
        second.write(b"bb")
    assert path.read_bytes() == b"aaaa"  # the block that ends last
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "file", tmp_path / "link"
    link.symlink_to(target)
    for text in (b"new where nothing was", b"newer"):
        with replacing(link) as stream:
            stream.write(text)
        assert link.is_symlink()
        assert target.read_bytes() == text
    assert os.listdir(tmp_path / "there") == ["file"]


KILLED = """
import os, signal, sys
from polyad.core.files import held, replacing
with replacing(sys.argv[1]) as stream:
    stream.write(b"half")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is of POSIX")
def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path):
    for name in ("file", "file.other"):
        subprocess.run([sys.executable, "-c", KILLED, tmp_path / name], check=False)
    left = sorted(name for name in os.listdir(tmp_path) if name.endswith(".tmp"))
    assert len(left) == 2
    strangers = [".file.tmp", ".file.123.tmp", ".file.12345678-1-ab.polyad.tmp", "note.txt"]
    for name in strangers:
        (tmp_path / name).touch()
    with replacing(tmp_path / "file") as stream:
        # A file that is being written, here by this process, is never taken for a leftover.
        with replacing(tmp_path / "file") as inner:
            inner.write(b"first")
        stream.write(b"second")
    assert (tmp_path / "file").read_bytes() == b"second"
    other = next(name for name in left if name.startswith(".file.other"))
    assert sorted(os.listdir(tmp_path)) == sorted(["file", other, *strangers])


@pytest.mark.parametrize("path", [5, None, b"file"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(InvalidTypeError, match="The path is a"), replacing(path):
        pass


# One writer at a time.


def test_a_file_is_held_by_one(tmp_path):
    path = tmp_path / "file"
    with held(path):
        with pytest.raises(BlockingIOError), held(path):
            pass
        with held(tmp_path / "another"), replacing(path) as stream:
            stream.write(b"new")
        # The lock is not lost with the file that was replaced, nor by the one that was refused.
        with pytest.raises(BlockingIOError), held(path):
            pass
    with held(path):
        pass
    assert os.listdir(tmp_path) == ["file"]


HOLDER = """
import sys, time
from polyad.core.files import held
with held(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_held_is_free(tmp_path):
    path = tmp_path / "file"
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(BlockingIOError), held(path):
        pass
    process.kill()
    process.communicate()
    with held(path):
        pass
    assert os.listdir(tmp_path) == []


def test_a_lock_that_was_removed_meanwhile_is_taken_again(tmp_path, monkeypatch):
    real, calls = fcntl.flock, []

    def removed_first(handle, operation):
        if not calls:
            for name in os.listdir(tmp_path):
                os.unlink(tmp_path / name)
        calls.append(handle)
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with held(tmp_path / "file"):
        assert len(calls) == 2
        with pytest.raises(BlockingIOError), held(tmp_path / "file"):
            pass


def test_where_the_file_system_has_no_locks_nothing_is_held(tmp_path, monkeypatch):
    def refuse(*_args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with held(tmp_path / "file"), held(tmp_path / "file"):
        pass
    assert os.listdir(tmp_path) == []

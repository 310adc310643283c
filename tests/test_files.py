"""Files are whole or untouched, whoever writes them, and damaged ones are named."""

import json
import os
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax import files
from bqfd_jax.demos import DemonstrationError
from bqfd_jax.files import FileError, read_json, read_npz, write_json, write_npz, write_text
from bqfd_jax.policy import PolicyError


def write_through_a_path(path):
    with files.replacing_path(path) as temporary:
        temporary.write_bytes(b"new")


WRITERS = {
    "text": lambda path: write_text(path, "new"),
    "json": lambda path: write_json(path, ["new"]),
    "npz": lambda path: write_npz(path, new=np.ones(3)),
    "path": write_through_a_path,
}
every_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@every_writer
def test_a_file_is_replaced_whole(tmp_path, write):
    path = tmp_path / "a.file"
    path.write_text("old")
    write(path)
    assert path.read_bytes() != b"old"
    write(str(tmp_path / "b.file"))
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "b.file"]


@every_writer
@pytest.mark.parametrize("failure", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, write, failure):
    path = tmp_path / "a.file"
    path.write_text("old")

    def full(*args):
        raise OSError("full")

    monkeypatch.setattr(os, failure, full)
    with pytest.raises(OSError, match="full"):
        write(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_raises_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def interrupted():
        with files.replacing(path, "w") as file:
            file.write("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@every_writer
def test_content_is_on_disk_before_the_name_and_the_name_after_it(tmp_path, monkeypatch, write):
    path, events = tmp_path / "a.file", []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        events.append("folder" if is_folder else f"{os.fstat(descriptor).st_size > 0} content")
        fsync(descriptor)

    def watched_replace(source, target):
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write(path)
    assert events == ["True content", "rename", "folder"]


@every_writer
def test_files_have_the_mode_of_ordinary_ones(tmp_path, write):
    before = os.umask(0o027)
    try:
        write(tmp_path / "a.file")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.file").stat().st_mode) == 0o640


def test_temporary_names_differ_keep_the_ending_and_are_recognised(tmp_path):
    path = tmp_path / "a.png"
    with files.replacing_path(path) as one, files.replacing_path(path) as other:
        assert one != other
        for temporary in (one, other):
            assert temporary.parent == tmp_path
            assert temporary.suffix == ".png"
            assert temporary.name.startswith(".tmp-")


def test_a_link_planted_at_the_temporary_name_is_not_followed(tmp_path, monkeypatch):
    """Nobody can know that name; and if somebody did, nothing would be written there."""
    target, path = tmp_path / "target", tmp_path / "a.json"
    target.write_text("precious")
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    planted = tmp_path / f".tmp-{bytes(8).hex()}-a.json"
    planted.symlink_to(target)
    with pytest.raises(FileExistsError):
        write_json(path, {})
    assert target.read_text() == "precious"
    assert planted.is_symlink()
    assert not path.exists()


def test_json_is_strict(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"return": np.float32(1.5), "curve": jnp.arange(3), "bad": np.nan})
    assert json.loads(path.read_text()) == {"return": 1.5, "curve": [0, 1, 2], "bad": None}
    assert read_json(path)["curve"] == [0, 1, 2]
    with pytest.raises(TypeError, match=r"\['b'\] is a object"):
        write_json(path, {"a": 1, "b": object()})
    with pytest.raises(TypeError, match="PRNG key"):
        write_json(path, [jax.random.key(0)])
    assert read_json(path)["bad"] is None


def test_arrays_come_back_and_only_those_asked_for_are_read(tmp_path):
    path = tmp_path / "x.npz"
    write_npz(path, a=np.arange(3), b=np.eye(2, dtype=np.float32))
    assert set(read_npz(path)) == {"a", "b"}
    (only,) = read_npz(path, ["b"]).items()
    assert only[0] == "b"
    np.testing.assert_array_equal(only[1], np.eye(2))
    with pytest.raises(FileError, match=r"x\.npz has no array c, only a, b"):
        read_npz(path, ["a", "c"])


def test_pickled_objects_are_refused(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=np.array([object()]))
    with pytest.raises(FileError, match=r"x\.npz is damaged"):
        read_npz(path)


@pytest.mark.parametrize("kind", [FileError, DemonstrationError, PolicyError])
def test_damaged_files_are_named(tmp_path, kind):
    path = tmp_path / "x.file"
    path.write_bytes(b"\xff{]")
    for read in (read_json, read_npz):
        with pytest.raises(kind, match=r"x\.file is damaged or no") as caught:
            read(path, error=kind)
        assert type(caught.value) is kind
        assert caught.value.__cause__ is not None
        with pytest.raises(FileNotFoundError, match="there is no file"):
            read(tmp_path / "absent", error=kind)


def test_a_damaged_policy_is_no_damaged_demonstration():
    assert issubclass(PolicyError, FileError)
    assert not issubclass(PolicyError, DemonstrationError)

"""Bombs, pipes and lies about sizes: refused before anything is unpacked, with the file's name."""

import bz2
import io
import json
import os
import tarfile
import threading
import tracemalloc
import zipfile

import h5py
import numpy as np
import pytest
from test_frames import recorded
from test_importing import (
    BREAKOUT,
    Head,
    agc,
    agc_lines,
    minari,
    minari_episode,
    save_arrays,
    two_games,
)

from bqfd_jax import demos, limits
from bqfd_jax.demos import importing
from bqfd_jax.demos.importing import atari_head
from bqfd_jax.files import FileError, read_bytes, read_json, read_npz
from bqfd_jax.policy import PolicyError, load_policy

MB = 2**20


@pytest.fixture
def little(monkeypatch):
    """A limit of ten megabytes."""
    monkeypatch.setenv("BQFD_MAX_GB", "0.01")


def peak_of(read):
    """The most memory that Python took while something was refused or read."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(message, read, *arguments, kind=FileError, **options):
    def attempt():
        with pytest.raises(kind, match=message):
            read(*arguments, **options)

    assert peak_of(attempt) < 5 * MB


def with_member(path, name, data, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "a", compression) as archive:
        archive.writestr(f"{name}.npy", data)
    return path


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def declaring(shape, dtype="<f4"):
    """An array that says it is larger than it is."""
    stream = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + bytes(100)


# --- Arrays ---


@pytest.mark.parametrize(
    ("name", "read", "kind"),
    [
        ("a", read_npz, FileError),
        ("meta", lambda path: demos.load(path), demos.DemonstrationError),
        ("actions", lambda path: importing.read("npz", path), demos.DemonstrationError),
        ("meta", load_policy, PolicyError),
    ],
)
def test_what_would_unpack_to_too_much_is_not_unpacked(tmp_path, little, name, read, kind):
    path = with_member(tmp_path / "x.npz", name, npy(np.zeros(100 * MB, np.uint8)))
    assert path.stat().st_size < MB
    refused(r"x\.npz holds 0\.1 GB .* 0\.01 GB are allowed", read, path, kind=kind)


def test_the_limit_can_be_raised(tmp_path, little, monkeypatch):
    path = with_member(tmp_path / "x.npz", "a", npy(np.zeros(20 * MB, np.uint8)))
    refused("set BQFD_MAX_GB higher", read_npz, path)
    monkeypatch.setenv("BQFD_MAX_GB", "0.1")
    assert read_npz(path)["a"].nbytes == 20 * MB
    monkeypatch.setenv("BQFD_MAX_GB", "much")
    assert limits.max_bytes() == 4e9


def test_free_memory_counts_too(tmp_path, monkeypatch):
    path = with_member(tmp_path / "x.npz", "a", npy(np.zeros(20 * MB, np.uint8)))
    monkeypatch.setattr(limits, "free_memory", lambda: 10 * MB)
    refused("the free memory has only 0.0 GB", read_npz, path)
    monkeypatch.setattr(limits, "free_memory", lambda: None)
    assert len(read_npz(path)["a"]) == 20 * MB


def test_the_free_memory_is_known_here():
    assert 10 * MB < limits.free_memory() < 2**50


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (declaring((2**40,)), "declares 4398046511104 bytes that are not there"),
        (declaring((2**60, 2**60)), "bytes that are not there"),
        (declaring((-5,)), "damaged"),
        (declaring((25,), "<U400000000"), "bytes that are not there"),
        (declaring((25,), "|O"), "holds objects, not numbers or text"),
        (declaring((25,), [("a", "<f4")]), "holds objects, not numbers or text"),
        (b"no array at all", "damaged"),
        (b"", "damaged"),
        (b"\x93NUMPY\x03\x00" + bytes(100), "unknown header"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"-" * 65535, "damaged"),
        (npy(np.zeros(5)) + b"more", "bytes that are not there"),
    ],
)
def test_lies_about_an_array_are_seen_through(tmp_path, data, message):
    path = with_member(tmp_path / "x.npz", "a", data)
    refused(rf"x\.npz is damaged or no \.npz file: .*{message}|{message}", read_npz, path)


def test_nobody_is_advised_to_allow_pickles(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([object()]))
    with pytest.raises(FileError) as caught:
        read_npz(tmp_path / "x.npz")
    assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_numpy_never_writes_is_not_unpacked(tmp_path, compression):
    path = with_member(tmp_path / "x.npz", "a", npy(np.zeros(8 * MB, np.uint8)), compression)
    refused("packed as numpy never does it", read_npz, path)


def test_a_directory_that_lies_does_not_unpack_more(tmp_path):
    path = with_member(tmp_path / "x.npz", "a", npy(np.zeros(50 * MB, np.uint8)))
    small = with_member(tmp_path / "y.npz", "a", npy(np.zeros(100, np.uint8)))
    data, other = path.read_bytes(), small.read_bytes()
    size = (50 * MB + 128).to_bytes(4, "little")
    assert data.count(size) >= 1
    path.write_bytes(data.replace(size, (228).to_bytes(4, "little")))
    assert (228).to_bytes(4, "little") in other
    refused("damaged", read_npz, path)


def test_arrays_that_nobody_asked_for_are_not_read(tmp_path, little):
    path = tmp_path / "mine.npz"
    demos.save(recorded(), path)
    with_member(path, "junk", npy(np.zeros(100 * MB, np.uint8)))
    with_member(path, "trash", b"no array at all")
    assert peak_of(lambda: demos.load(path)) < 5 * MB
    own = save_arrays(tmp_path)
    with_member(own, "junk", npy(np.zeros(100 * MB, np.uint8)))
    assert peak_of(lambda: importing.read("npz", own)) < 10 * MB


# --- Pipes and folders ---


@pytest.mark.parametrize("read", [demos.load, load_policy, read_npz, read_json])
def test_a_pipe_is_no_file(tmp_path, read):
    path = tmp_path / "pipe.npz"
    os.mkfifo(path)
    caught = []

    def attempt():
        try:
            read(path)
        except Exception as error:
            caught.append(error)

    # Should it wait for somebody to write, then not the tests with it.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(caught[0], FileError)
    assert "pipe.npz is no regular file" in str(caught[0])


def test_a_pipe_is_no_archive_of_pictures(tmp_path):
    folder = head_folder(tmp_path, b"")
    (archive,) = folder.glob("*.tar.bz2")
    archive.unlink()
    os.mkfifo(archive)
    refused("holds no trial", importing.read, "atari-head", folder)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(demos.DemonstrationError, match="is no regular file"):
        demos.load(tmp_path)


# --- Archives of pictures ---


def archive_of(*members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:bz2") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def head_folder(tmp_path, archive):
    trial = two_games()
    folder = trial.folder(tmp_path / "breakout")
    (folder / f"{trial.stem}.tar.bz2").write_bytes(archive)
    return folder


def test_a_picture_that_is_larger_than_any_is_not_unpacked(tmp_path):
    data = archive_of(("x/RZ_2464601_1.png", bytes(30 * MB)))
    assert len(data) < 10_000
    refused("larger than any screen", importing.read, "atari-head", head_folder(tmp_path, data))


def test_an_archive_that_never_ends_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(atari_head, "_MORE_PICTURES", 1)
    data = archive_of(*((f"x/other{i}.txt", bytes(MB)) for i in range(30)))
    refused("holds more than", importing.read, "atari-head", head_folder(tmp_path, data))


def test_a_header_that_is_a_bomb_is_left(tmp_path, monkeypatch):
    """Names of any length may stand before a member; tarfile reads them whole."""
    monkeypatch.setattr(atari_head, "_MORE_PICTURES", 1)
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 50 * MB
    data = bz2.compress(name.tobuf(tarfile.GNU_FORMAT) + bytes(50 * MB))

    def attempt():
        with pytest.raises(demos.DemonstrationError, match="holds more than"):
            importing.read("atari-head", head_folder(tmp_path, data))

    # As much as the pictures of the table might take, and no more.
    assert peak_of(attempt) < 20 * MB


def test_a_file_that_is_too_long_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "table.txt"
    path.write_bytes(bytes(101))
    with pytest.raises(FileError, match=r"table\.txt has more than 100 bytes"):
        read_bytes(path, most=100)
    assert len(read_bytes(path, most=101)) == 101


# --- Minari ---


def dataset(tmp_path, **changes):
    episode = minari_episode([1, 2, 3], ends=True, **changes)
    folder = minari(tmp_path / "expert-v0", [episode], metadata=BREAKOUT)
    return folder, folder / "data" / "main_data.hdf5"


def exchange(path, field, make):
    with h5py.File(path, "a") as file:
        del file[f"episode_0/{field}"]
        make(file["episode_0"], field)


def external_data(secret):
    def make(group, field):
        group.create_dataset(
            field, (4, 84, 84), np.uint8, external=[(str(secret), 0, h5py.h5f.UNLIMITED)]
        )

    return make


def virtual_data(secret):
    def make(group, field):
        layout = h5py.VirtualLayout((4, 84, 84), np.uint8)
        layout[:] = h5py.VirtualSource(str(secret), "data", (4, 84, 84))
        group.create_virtual_dataset(field, layout)

    return make


def linked(link):
    def make(group, field):
        group[field] = link

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: external_data(path), "observations keeps its data in another file"),
        (lambda path: virtual_data(path), "observations keeps its data in another file"),
        (lambda path: linked(h5py.ExternalLink(str(path), "/data")), "observations is a link"),
        (lambda path: linked(h5py.SoftLink("/episode_0/actions")), "observations is a link"),
    ],
)
def test_nothing_outside_of_a_dataset_gets_into_it(tmp_path, make, message):
    secret = tmp_path / "secret.hdf5"
    with h5py.File(secret, "w") as file:
        file["data"] = np.full((4, 84, 84), 7, np.uint8)
    folder, path = dataset(tmp_path)
    exchange(path, "observations", make(secret))
    refused(message, importing.read, "minari", folder)


def test_a_whole_episode_may_not_be_a_link_either(tmp_path):
    _, other = dataset(tmp_path / "other")
    folder, path = dataset(tmp_path)
    with h5py.File(path, "a") as file:
        file["episode_1"] = h5py.ExternalLink(str(other), "/episode_0")
    refused("episode_1 is a link", importing.read, "minari", folder)


def test_what_was_never_written_is_not_taken_for_zeros(tmp_path):
    folder, path = dataset(tmp_path)
    exchange(
        path,
        "observations",
        lambda group, name: group.create_dataset(name, (4, 84, 84), np.uint8, chunks=(1, 84, 84)),
    )
    refused("observations was never written", importing.read, "minari", folder)


@pytest.mark.parametrize(
    ("env", "shape"),
    # Screens are kept as small as the agents see them; anything else as it is.
    [("ALE/Breakout-v5", (2**14, 210, 160, 3)), ("CartPole-v1", (4, 2**12, 2**12))],
)
def test_a_dataset_that_declares_too_much_is_not_read(tmp_path, little, env, shape):
    folder, path = dataset(tmp_path)
    spec = BREAKOUT | {"env_spec": json.dumps({"id": env})}
    (folder / "data" / "metadata.json").write_text(json.dumps(spec))

    def make(group, name):
        made = group.create_dataset(name, shape, np.uint8, chunks=(1, 32, 32, 3)[: len(shape)])
        made[0, :8, :8] = 1

    exchange(path, "observations", make)
    refused(r"main_data\.hdf5 holds 0\.1 GB", importing.read, "minari", folder)


def test_reading_a_damaged_dataset_ends(tmp_path, monkeypatch):
    """64 zeros in its heap of strings, and the HDF5 library looks for one of them for ever."""
    folder, path = dataset(tmp_path)
    (folder / "data" / "metadata.json").unlink()
    with h5py.File(path, "a") as file:
        file.attrs.update(BREAKOUT)
    assert importing.read("minari", folder).demonstration.num_rows == 4
    data = bytearray(path.read_bytes())
    at = data.index(b"GCOL") + 24
    data[at : at + 64] = bytes(64)
    path.write_bytes(data)
    monkeypatch.setattr(importing.minari, "_PATIENCE", 4.0)
    monkeypatch.setattr(importing.minari, "_SPEED", 1e12)
    refused("is damaged: reading it did not end", importing.read, "minari", folder)


# --- Others ---


def test_postscript_is_no_picture(tmp_path, monkeypatch):
    """Pillow would start Ghostscript on it, whatever the file is called."""
    started = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *a, **o: started.append(a))
    monkeypatch.setattr("subprocess.check_call", lambda *a, **o: started.append(a))
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 160 210\n%%EndComments\nshowpage\n%%EOF\n"
    trial = Head(([3] * 5, [0] * 5))
    trial.pictures = dict.fromkeys(trial.pictures, eps)
    with pytest.raises(demos.DemonstrationError, match="is no picture that can be read"):
        importing.read("atari-head", trial.folder(tmp_path / "breakout"))
    assert not started


def test_a_picture_on_the_disk_that_is_larger_than_any_is_not_read(tmp_path):
    agc(tmp_path, lines=agc_lines(6))
    picture = next(tmp_path.glob("screens/*/*/4.png"))
    with picture.open("r+b") as file:
        file.truncate(2**30)
    refused(r"4\.png has more than", importing.read, "agc", tmp_path)

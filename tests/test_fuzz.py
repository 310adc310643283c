"""Any change of any file gives an error of ours, or the same content; never anything else.

A few hundred changes by default, a hundred thousand with `-m slow`.  Formats that carry checksums
come back the same or not at all.  Tables, HDF5 and JSON of other people carry none: of these only
what the schema allows comes back, and it can be shown.
"""

import contextlib
import dataclasses
import json
import random

import jax
import numpy as np
import pytest
from test_checkpoint import OneItem, assert_identical, small_state
from test_demos import beginning
from test_frames import recorded
from test_importing import BREAKOUT, agc, agc_lines, minari, minari_episode, save_arrays, two_games
from test_policy import SHAPE

from bqfd_jax import demos, networks
from bqfd_jax.demos import importing
from bqfd_jax.files import FileError, read_json, write_json
from bqfd_jax.policy import Policy, load_policy, save_policy
from bqfd_jax.runs.checkpoint import CheckpointError
from experiments.demos import journal, show

OURS = (FileError, FileNotFoundError, CheckpointError)


def mutate(data, rng):
    """The same bytes with one to three accidents."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(data) + 1)
        length = rng.choice([1, 1, 2, 4, 8, 64, 1024])
        other = rng.randrange(len(data) + 1)
        kind = rng.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, ord("9"), ord("-"), ord("\n")])
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            data[at:at] = rng.randbytes(length)
        elif kind == 4:
            data[at : at + length] = bytes(min(length, len(data) - at))
        elif kind == 5:
            del data[at : at + length]
        elif kind == 6:
            data[at : at + length] = data[other : other + length]
        else:
            data[at:at] = data[other : other + length]
    return bytes(data)


@dataclasses.dataclass
class Sample:
    """A file that can be changed, how it is read, and whether it must come back the same."""

    path: object
    read: object
    is_checked: bool = True


def shown(demonstration):
    """Whatever is accepted can be looked at."""
    rows = demos.to_rows(demonstration, gamma=1.0, log_rewards=False, life_loss_is_terminal=False)
    show.describe(demonstration, rows)
    return demonstration


def sample_actions(folder):
    demos.save(beginning(), folder / "x.npz")
    return Sample(folder / "x.npz", lambda path: demos.load(path))


def sample_frames(folder):
    demos.save(recorded(frames=np.arange(7, dtype=np.uint8)[:, None]), folder / "x.npz")
    return Sample(folder / "x.npz", lambda path: shown(demos.load(path)))


def sample_policy(folder):
    network = networks.described_network({"hidden": 4}, **SHAPE)
    params = network.init(jax.random.key(0), np.zeros((1, 1, 4), np.float32))
    save_policy(
        Policy(network=network, params=params, made_with={"hidden": 4}, **SHAPE), folder / "x"
    )
    return Sample(folder / "x", lambda path: load_policy(path).params)


def sample_arrays(folder):
    path = save_arrays(folder, frames=np.zeros((7, 3)), env=np.array("CartPole-v1"))
    return Sample(path, lambda path: shown(importing.read("npz", path).demonstration))


def of_head(folder, ending):
    two_games().folder(folder / "breakout")
    (path,) = (folder / "breakout").glob(f"*{ending}")

    def read(path):
        return importing.read("atari-head", path.parent).demonstration

    return Sample(path, read, is_checked=False)


def of_agc(folder, pattern):
    agc(folder, lines=agc_lines(6))
    path = sorted(folder.glob(pattern))[0]

    def read(path):
        return importing.read("agc", folder).demonstration

    return Sample(path, read, is_checked=False)


def of_minari(folder, name):
    episode = minari_episode([1, 2, 3], ends=True, observations=np.zeros((4, 84, 84), np.uint8))
    data = minari(folder / "expert-v0", [episode], metadata=BREAKOUT) / "data"

    def read(path):
        return importing.read("minari", data).demonstration

    return Sample(data / name, read, is_checked=False)


def of_checkpoint(folder, name):
    saver = OneItem(folder, on_skip=lambda message: None)
    path = saver.save(3, {**small_state(3), "python": 0.5, "key": jax.random.key(2)})
    template = {**small_state(0), "python": 0.0, "key": jax.random.key(0)}
    return Sample(path / name, lambda path: saver.restore(template))


def sample_journal(folder):
    kept = journal.Journal(folder / "x", "Freeway", print)
    for games in ([[1]], [[1, 2]], [[1, 2, 0]], [[1]], [[1], [2, 2, 2]]):
        kept.update(games)
    kept._close()
    return Sample(kept.path, journal.read, is_checked=False)


def sample_json(folder):
    write_json(folder / "x.json", {"a": [1, 2.5, None], "b": {"c": "text"}})
    return Sample(folder / "x.json", read_json, is_checked=False)


# Sample -> how often it is changed by default, and with the slow mark.
SAMPLES = {
    "actions": (sample_actions, 60, 20_000),
    "frames": (sample_frames, 60, 20_000),
    "policy": (sample_policy, 30, 10_000),
    "arrays": (sample_arrays, 40, 10_000),
    "head table": (lambda folder: of_head(folder, ".txt"), 20, 8_000),
    "head pictures": (lambda folder: of_head(folder, ".tar.bz2"), 20, 8_000),
    "agc table": (lambda folder: of_agc(folder, "trajectories/*/*.txt"), 20, 5_000),
    "agc picture": (lambda folder: of_agc(folder, "screens/*/*/*.png"), 20, 4_000),
    "hdf5": (lambda folder: of_minari(folder, "main_data.hdf5"), 4, 1_000),
    "minari json": (lambda folder: of_minari(folder, "metadata.json"), 4, 1_000),
    "manifest": (lambda folder: of_checkpoint(folder, "manifest.json"), 30, 5_000),
    "checkpoint": (lambda folder: of_checkpoint(folder, "state.zip"), 30, 5_000),
    "journal": (sample_journal, 20, 1_000),
    "json": (sample_json, 40, 2_000),
}


def same(some, other):
    if dataclasses.is_dataclass(some):
        # The name is the file's unless the file tells.
        some, other = ({**vars(x), "name": None} for x in (some, other))
    assert_identical(*(jax.tree.map(comparable, tree) for tree in (some, other)))


def comparable(leaf):
    return np.asarray(leaf) if isinstance(leaf, str) else leaf


def fuzz(sample, count, seed):
    whole = sample.path.read_bytes()
    expected = sample.read(sample.path)
    rng = random.Random(seed)
    accepted = 0
    for number in range(count):
        sample.path.write_bytes(mutate(whole, rng))
        try:
            found = sample.read(sample.path)
        except OURS:
            continue
        # Named, so that the change can be made again.
        except Exception as error:
            raise AssertionError(f"change {number} of seed {seed}: {error!r}") from error
        accepted += 1
        if sample.is_checked:
            same(found, expected)
    return accepted


@pytest.mark.parametrize("name", SAMPLES)
def test_any_change_of_any_file_is_refused_or_does_not_matter(tmp_path, name):
    make, count, _ = SAMPLES[name]
    assert fuzz(make(tmp_path), count, seed=0) < count


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_a_hundred_thousand_changes(tmp_path, name):
    make, _, count = SAMPLES[name]
    accepted = fuzz(make(tmp_path), count, seed=1)
    print(f"{name}: {count} changes, {accepted} did not matter or were allowed")


def test_the_hundred_thousand_are_as_many():
    assert sum(count for *_, count in SAMPLES.values()) == 100_000


# --- Files that are well formed, but say nonsense ---

NONSENSE = [
    *(None, True, 0, -1, 10**30, 10**400, 1e300, "", "x", "\x1b[2J", "\ud800", [], [[]], {}),
    *([None], [-1], [10**30], ["x"], [1.5], [18, 19, 20, 21], [True] * 9, {"x": []}, [1e39]),
]
ARRAYS = [
    *(np.array(value) for value in (0, -1, 1.5, np.nan, "x", b"x", True, 1j, [], [[]], [1, 2])),
    *(np.full(5, value) for value in (-1, 17, 3e38, 1e300, np.inf, 2**63, 2**31, "text", True)),
    *(
        np.zeros(shape, kind)
        for shape in (5, 7, (5, 1), (7, 2), (7, 0))
        for kind in (int, "u1", "f2")
    ),
    np.zeros(5, "datetime64[s]"),
]


def test_nonsense_in_json_is_refused_in_words(tmp_path):
    for saved in (beginning(), recorded(frames=np.zeros((7, 2), np.uint8))):
        demos.save(saved, tmp_path / "x.npz")
        with np.load(tmp_path / "x.npz") as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(str(arrays["meta"]))
        del meta["checksum"]
        for field in meta:
            for value in NONSENSE:
                text = json.dumps(meta | {field: value})
                for told in {text, text.replace("1e+39", "1e400"), text.replace("1.5", "Infinity")}:
                    np.savez(tmp_path / "x.npz", **arrays | {"meta": np.array(told)})
                    with contextlib.suppress(demos.DemonstrationError):
                        found = demos.load(tmp_path / "x.npz")
                        if isinstance(found, demos.FrameDemonstration):
                            shown(found)
        for told in ("[" * 100_000, "{}", "[]", "3", "null", '{"a": ' * 2000, "\x00"):
            np.savez(tmp_path / "x.npz", **arrays | {"meta": np.array(told)})
            with pytest.raises(demos.DemonstrationError, match=r"x\.npz"):
                demos.load(tmp_path / "x.npz")


def test_nonsense_in_arrays_is_refused_in_words(tmp_path):
    demos.save(
        recorded(frames=np.zeros((7, 2), np.uint8), lives=np.ones(7, int)), tmp_path / "x.npz"
    )
    with np.load(tmp_path / "x.npz") as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays["meta"]))
    del meta["checksum"]
    arrays["meta"] = np.array(json.dumps(meta))
    for field in arrays:
        for value in ARRAYS:
            np.savez(tmp_path / "x.npz", **arrays | {field: value})
            with contextlib.suppress(demos.DemonstrationError):
                shown(demos.load(tmp_path / "x.npz"))


def test_nonsense_to_import_is_refused_in_words(tmp_path):
    optional = {"lives": np.ones(7, int), "frame_skip": np.array(4), "num_actions": np.array(4)}
    for told in ("Breakout", "CartPole-v1"):
        path = save_arrays(tmp_path, env=np.array(told), **optional)
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        for field in arrays:
            for value in ARRAYS:
                np.savez(path, **arrays | {field: value})
                with contextlib.suppress(FileError):
                    shown(importing.read("npz", path).demonstration)

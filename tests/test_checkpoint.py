"""Checkpoints come back bit for bit, survive damage and kills, and refuse what does not fit."""

import errno
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import time
import tracemalloc
import warnings
import zipfile
from pathlib import Path
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bqfd_jax
from bqfd_jax.runs import checkpoint, checkpoint_items
from bqfd_jax.runs.checkpoint import Checkpointer, CheckpointError
from bqfd_jax.types import LearnerState


class OneItem(Checkpointer):
    """Saves and restores a single tree, for tests that are not about items."""

    def save(self, step, tree):
        return super().save(step, {"state": tree})

    def restore(self, template, **options):
        found = super().restore({"state": template}, **options)
        return found and (found[0], found[1]["state"])


class Counters(NamedTuple):
    seen: jax.Array
    lane: np.ndarray


def small_state(value):
    return {"w": jnp.full((4, 3), value, jnp.float32), "n": jnp.asarray(value, jnp.int32)}


def rich_state():
    params = {"dense": {"kernel": jnp.linspace(-1, 1, 6).reshape(2, 3), "bias": jnp.zeros(3)}}
    return {
        "learner": LearnerState(
            params=params,
            target_params=jax.tree.map(lambda x: x + 1, params),
            opt_state=optax.chain(optax.clip(1.0), optax.adam(1e-3)).init(params),
            updates=jnp.asarray(7, jnp.int32),
        ),
        "counters": Counters(seen=jnp.arange(5, dtype=jnp.uint8), lane=np.array([2**40, -1])),
        "floats": jnp.array([0.0, -0.0, jnp.nan, jnp.inf, 1e-45], jnp.float32),
        "half": jnp.array([1.0, -0.0, jnp.nan, 3e38], jnp.bfloat16),
        "flags": jnp.array([[True], [False]]),
        "float64": np.array([np.pi, np.nan]),
        "scalar": np.float32(0.1),
        "point": np.array(3.5, np.float32),
        "empty": jnp.zeros((0, 84, 84), jnp.uint8),
        "empty_numpy": np.zeros((3, 0), np.int64),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4), (2, 3)),
        "rbg_key": jax.random.key(5, impl="rbg"),
        "no_keys": jax.random.split(jax.random.key(6), 2)[:0],
        "raw_key": jax.random.key_data(jax.random.key(0)),
        "weak": jnp.asarray(2.5),
        "python": (True, 2**40, 0.1, float("nan")),
        "nothing": None,
    }


def bits(leaf):
    if type(leaf) in (bool, int, float):
        return type(leaf), leaf.hex() if type(leaf) is float else leaf
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf.dtype, leaf.shape, np.asarray(jax.random.key_data(leaf)).tobytes()
    return leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()


def assert_identical(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert bits(a) == bits(b)
        assert isinstance(a, jax.Array) == isinstance(b, jax.Array)
        assert type(a) is type(b)
        assert getattr(a, "weak_type", None) == getattr(b, "weak_type", None)


def scrambled(tree):
    """The same template with other contents, so that nothing can leak from it."""

    def scramble(x):
        if type(x) in (bool, int, float):
            return type(x)(0)
        if isinstance(x, np.ndarray):
            return np.zeros_like(x)
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            zeros = jax.random.key_data(x) * 0
            return jax.random.wrap_key_data(zeros, impl=jax.random.key_impl(x))
        return x != x if x.dtype == bool else x * 0

    return jax.tree.map(scramble, tree)


def test_everything_comes_back_bit_for_bit(tmp_path):
    state = rich_state()
    saver = OneItem(tmp_path / "deep" / "er")
    saver.save(12, state)
    step, restored = saver.restore(scrambled(state))
    assert step == 12
    assert_identical(restored, state)
    chex.assert_trees_all_equal(
        jax.random.uniform(restored["key"], (3,)), jax.random.uniform(state["key"], (3,))
    )


def test_shapes_are_template_enough(tmp_path):
    state = rich_state()
    # 64-bit numpy leaves are not what `eval_shape` says they are.
    del state["counters"], state["float64"], state["empty_numpy"]
    state["python"] = (True, 5, 0.5)
    saver = OneItem(tmp_path)
    saver.save(0, state)
    _, restored = saver.restore(jax.eval_shape(lambda: state))
    assert_identical(restored, jax.tree.map(lambda x: x[...], jax.jit(lambda: state)()))


def test_large_arrays_are_cut_and_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_items, "_PIECE_BYTES", 100)
    state = {
        # 13 rows of 30 bytes: a last block that is shorter than the others.
        "jax": jax.random.bits(jax.random.key(0), (13, 30), jnp.uint8),
        "numpy": np.arange(101, dtype=np.int64),
        "long_rows": jnp.arange(300.0).reshape(3, 100),
        "flags": jnp.arange(1001) % 3 == 0,
    }
    saver = OneItem(tmp_path)
    path = saver.save(0, state)
    with zipfile.ZipFile(path / "state.zip") as archive:
        # 3 rows of 30, 12 numbers of 8, a row, 100 flags.
        assert len(archive.namelist()) == 5 + 9 + 3 + 11
    assert_identical(saver.restore(state)[1], state)


def test_restored_numpy_arrays_are_their_own(tmp_path):
    saver = OneItem(tmp_path)
    template = {"a": np.zeros(3)}
    saver.save(0, {"a": np.ones(3)})
    restored = saver.restore(template)[1]
    restored["a"][0] = 5
    assert template["a"][0] == 0
    assert saver.restore(template)[1]["a"][0] == 1


def test_a_tree_without_arrays(tmp_path):
    saver = OneItem(tmp_path)
    saver.save(3, {"n": 4, "none": None})
    assert saver.restore({"n": 0, "none": None}) == (3, {"n": 4, "none": None})


def test_nothing_saved_yet(tmp_path):
    assert OneItem(tmp_path / "absent").restore(small_state(0)) is None
    assert OneItem(tmp_path / "absent").steps() == []
    assert not (tmp_path / "absent").exists()


def test_keeps_the_last_k(tmp_path):
    saver = OneItem(tmp_path, keep=2)
    (tmp_path / "notes.txt").write_text("mine")
    for step in (5, 10, 1000, 15):
        saver.save(step, small_state(step))
    # The order is that of saving: after a rollback the newest may have a smaller step.
    assert saver.steps() == [1000, 15]
    assert_identical(saver.restore(small_state(0)), (15, small_state(15)))
    assert len(list(tmp_path.iterdir())) == 3
    saver.save(15, small_state(16))
    assert saver.steps() == [1000, 15]
    assert_identical(saver.restore(small_state(0)), (15, small_state(16)))


def test_keep_one(tmp_path):
    saver = OneItem(tmp_path, keep=1)
    for step in (1, 2):
        saver.save(step, small_state(step))
    assert saver.steps() == [2]
    with pytest.raises(ValueError, match="keep"):
        OneItem(tmp_path, keep=0)


def largest_file(path):
    """The one to damage; `path` may be the file itself."""
    return path if path.is_file() else max(path.glob("*.zip"), key=os.path.getsize)


def flip_byte(path):
    file = largest_file(path)
    with zipfile.ZipFile(file) as archive:
        member = max(archive.infolist(), key=lambda info: info.compress_size)
    data = bytearray(file.read_bytes())
    # A local header has 30 bytes and then a name and an extra field, whose lengths it ends with.
    lengths = struct.unpack_from("<HH", data, member.header_offset + 26)
    data[member.header_offset + 30 + sum(lengths) + member.compress_size // 2] ^= 1
    file.write_bytes(data)
    return f"{file.name} is damaged"


def truncate(path):
    file = largest_file(path)
    size = file.stat().st_size
    os.truncate(file, size - 1)
    return f"{file.name} is damaged"


def remove_file(path):
    file = largest_file(path)
    file.unlink()
    return f"{file.name} is missing"


def remove_manifest(path):
    (path / "manifest.json").unlink()
    return "manifest.json is missing"


def cut_manifest(path):
    os.truncate(path / "manifest.json", 40)
    return "manifest.json is damaged or no JSON"


def change_manifest(path):
    file = path / "manifest.json"
    file.write_text(file.read_text().replace('"step": 2', '"step": 3'))
    return "manifest.json does not match its checksum"


def replace_by_file(path):
    path.rename(path.with_name("elsewhere"))
    path.write_text("")
    return "manifest.json is missing"


def exchange_file(path):
    """A file that is whole, but of another checkpoint."""
    other = next(folder for folder in path.parent.glob("*-step-*") if folder != path)
    shutil.copy(other / "state.zip", path / "state.zip")
    return "state.zip does not match its checksums"


DAMAGES = [
    flip_byte,
    truncate,
    remove_file,
    remove_manifest,
    cut_manifest,
    change_manifest,
    replace_by_file,
    exchange_file,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_falls_back_and_says_so(tmp_path, damage):
    saver = OneItem(tmp_path, keep=3)
    paths = [saver.save(step, small_state(step)) for step in (0, 1, 2)]
    wrong = damage(paths[2])
    with pytest.warns(UserWarning, match="skipped checkpoint") as caught:
        step, state = saver.restore(small_state(9))
    assert step == 1
    assert_identical(state, small_state(1))
    [warning] = caught
    assert str(paths[2]) in str(warning.message)
    assert wrong in str(warning.message)
    assert f"using {paths[1]} instead" in str(warning.message)
    assert warning.filename == __file__


def forge(path, change):
    """Changes a manifest's body, with a digest that fits it again."""
    file = path / "manifest.json"
    body = json.loads(file.read_text())["body"]
    change(body, body["items"]["state"])
    file.write_text(json.dumps({"body": body, "sha256": checkpoint._digest(body)}))


VALUES = [None, True, -1, 10**30, 1.5, "", "x", [], [None], ["x"], {}, {"x": 1}, [[-1, -1]]]
PLACES = [
    lambda body, item, value: body.update(step=value),
    lambda body, item, value: body.update(items=value),
    lambda body, item, value: body["items"].update(state=value),
    lambda body, item, value: item.update(leaves=value),
    lambda body, item, value: item.update(pieces=value),
    lambda body, item, value: item["pieces"].update({"0-0": value}),
    lambda body, item, value: item["leaves"].update({"state['n']": value}),
    lambda body, item, value: item["leaves"]["state['n']"].update(shape=value),
    lambda body, item, value: item["leaves"]["state['n']"].update(dtype=value),
    lambda body, item, value: item["leaves"]["state['python']"].update(value=value),
    lambda body, item, value: item["leaves"]["state['python']"].update(dtype=value),
    lambda body, item, value: item["leaves"]["state['key']"].update(key_impl=value),
    lambda body, item, value: item["leaves"]["state['key']"].pop("key_impl"),
    lambda body, item, value: item.pop("leaves"),
    lambda body, item, value: item.pop("pieces"),
    lambda body, item, value: body.pop("step"),
]


@pytest.mark.parametrize("place", range(len(PLACES)))
def test_a_forged_manifest_neither_crashes_nor_alters_a_state(tmp_path, place):
    state = {**small_state(2), "python": 0.5, "key": jax.random.key(1)}
    other = {**small_state(1), "python": 0.25, "key": jax.random.key(0)}
    saver = OneItem(tmp_path, keep=2, on_skip=lambda message: None)
    saver.save(1, other)
    path = saver.save(2, state)
    whole = (path / "manifest.json").read_text()
    for value in VALUES:
        (path / "manifest.json").write_text(whole)
        forge(path, lambda body, item, value=value: PLACES[place](body, item, value))
        try:
            step, found = saver.restore(scrambled(state))
        except CheckpointError:
            continue
        assert_identical(found, {1: other, 2: state}[step])


def test_leaves_of_one_shape_cannot_be_exchanged(tmp_path):
    saver = OneItem(tmp_path)
    state = {"a": jnp.zeros(3), "b": jnp.ones(3)}
    path = saver.save(2, state)

    def exchange(body, item):
        item["leaves"] = dict(reversed(item["leaves"].items()))

    forge(path, exchange)
    with pytest.raises(CheckpointError, match="in another order"):
        saver.restore(state)


def test_a_manifest_of_another_step_is_damage(tmp_path):
    saver = OneItem(tmp_path)
    path = saver.save(2, small_state(2))
    forge(path, lambda body, item: body.update(step=3))
    with pytest.raises(CheckpointError, match=r"manifest\.json is of step 3"):
        saver.restore(small_state(0))


def test_a_piece_that_unpacks_to_more_than_its_array_is_not_unpacked(tmp_path):
    saver = OneItem(tmp_path)
    path = saver.save(2, small_state(2))
    bomb = zipfile.ZipFile(path / "state.zip", "w", zipfile.ZIP_BZIP2)
    with bomb:
        bomb.writestr("0-0", bytes(50 * 2**20))
        bomb.writestr("1-0", bytes(48))

    def resign(body, item):
        item["pieces"] = checkpoint_items._checksums(bomb)

    forge(path, resign)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="piece 0-0 has another size than its array"):
        saver.restore(small_state(0))
    assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    tracemalloc.stop()


def test_all_damaged_is_an_error(tmp_path):
    messages = []
    saver = OneItem(tmp_path, on_skip=messages.append)
    paths = [saver.save(step, small_state(step)) for step in (1, 2)]
    wrongs = [flip_byte(paths[0]), remove_file(paths[1])]
    with pytest.raises(CheckpointError, match="is whole") as caught:
        saver.restore(small_state(0))
    for part in (*map(str, paths), *wrongs):
        assert part in str(caught.value)


def test_known_damage_takes_no_place(tmp_path):
    saver = OneItem(tmp_path, keep=2, on_skip=lambda message: None)
    paths = [saver.save(step, small_state(step)) for step in (1, 2)]
    flip_byte(paths[1])
    assert saver.restore(small_state(0))[0] == 1
    saver.save(3, small_state(3))
    assert saver.steps() == [1, 3]


def test_only_the_step_that_was_asked_for_will_do(tmp_path):
    saver = OneItem(tmp_path, keep=2, on_skip=lambda message: None)
    paths = [saver.save(step, small_state(step)) for step in (1, 2)]
    assert saver.restore(small_state(0), step=3) is None
    step, state = saver.restore(small_state(0), step=1)
    assert (step, int(state["n"])) == (1, 1)
    flip_byte(paths[1])
    with pytest.raises(CheckpointError, match="is whole"):
        saver.restore(small_state(0), step=2)
    # Whoever goes on from the first keeps it, and not what is damaged.
    saver.save(3, small_state(3))
    assert saver.steps() == [1, 3]


def test_half_written_checkpoint_is_passed_over_and_cleaned(tmp_path):
    messages = []
    saver = OneItem(tmp_path, on_skip=messages.append)
    leftover = tmp_path / "tmp-000000-step-1"
    leftover.mkdir()
    assert saver.restore(small_state(0)) is None
    assert "never finished" in messages.pop()
    whole = saver.save(1, small_state(1))
    assert not leftover.exists()

    leftover = tmp_path / "tmp-000001-step-2"
    leftover.mkdir()
    (leftover / "arrays-000").mkdir()
    assert saver.steps() == [1]
    assert saver.restore(small_state(0))[0] == 1
    [message] = messages
    assert str(leftover) in message
    assert f"using {whole} instead" in message
    saver.save(2, small_state(2))
    assert not leftover.exists()
    assert saver.restore(small_state(0))[0] == 2
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"w": jnp.zeros((4, 2))}, r"\['w'\]: stored float32\[4, 3\], expected float32\[4, 2\]"),
        ({"w": jnp.zeros((4, 3), jnp.bfloat16)}, r"stored float32\[4, 3\], expected bfloat16"),
        ({"n": 0}, r"\['n'\]: stored int32\[\], expected python int"),
        ({"n": jax.random.key(0)}, r"\['n'\]: stored int32\[\], expected key<fry>"),
        ({"extra": jnp.zeros(2)}, r"\['extra'\]: stored nothing, expected float32\[2\]"),
        ({"n": None}, r"\['n'\]: stored int32\[\], expected nothing"),
    ],
)
def test_another_configuration_is_an_error_not_damage(tmp_path, change, expected):
    saver = OneItem(tmp_path)
    saver.save(1, small_state(1))
    path = saver.save(2, small_state(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CheckpointError, match=expected) as caught:
            saver.restore({**small_state(0), **change})
    assert str(path) in str(caught.value)
    assert "another configuration" in str(caught.value)


def test_other_key_kind_is_a_mismatch(tmp_path):
    saver = OneItem(tmp_path)
    saver.save(1, jax.random.key(0))
    with pytest.raises(CheckpointError, match=r"state: stored key<fry>"):
        saver.restore(jax.random.key(0, impl="rbg"))


def test_what_cannot_be_stored_is_refused(tmp_path):
    saver = OneItem(tmp_path)
    with pytest.raises(CheckpointError, match=r"\['name'\] is a str"):
        saver.save(0, {"name": "pong"})
    with pytest.raises(CheckpointError, match=r"\['a'\] is a ndarray"):
        saver.save(0, {"a": np.array([object()])})
    assert saver.steps() == []


def test_full_disk_while_syncing(tmp_path, monkeypatch):
    saver = OneItem(tmp_path, keep=1)
    saver.save(1, small_state(1))

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left") as caught:
        saver.save(2, small_state(2))
    monkeypatch.undo()
    assert isinstance(caught.value.__cause__, OSError)
    assert [path.name for path in tmp_path.iterdir()] == ["000000-step-1"]
    assert_identical(saver.restore(small_state(0)), (1, small_state(1)))


def test_whole_before_it_is_named_and_old_ones_go_last(tmp_path, monkeypatch):
    saver = OneItem(tmp_path, keep=1)
    old = saver.save(1, small_state(1))
    moves = []
    rename = os.rename

    def watched(source, target):
        if Path(source).parent == tmp_path:
            moves.append((Path(source).name, Path(target).name))
            manifest = checkpoint._read_manifest(Path(source))
            assert manifest["step"] in (1, 2)
            item, wanted = (
                manifest["items"]["state"],
                checkpoint_items.flatten("state", small_state(0)),
            )
            checkpoint_items.read_item(Path(source, "state.zip"), item, wanted)
            assert old.exists()
        rename(source, target)

    monkeypatch.setattr(os, "rename", watched)
    saver.save(2, small_state(2))
    assert moves == [
        ("tmp-000001-step-2", "000001-step-2"),
        ("000000-step-1", "tmp-000000-step-1"),
    ]


def test_failed_write_inside_a_file(tmp_path):
    saver = OneItem(tmp_path, keep=1)
    saver.save(1, small_state(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CheckpointError, match="could not save step 2") as caught:
            saver.save(2, {"big": np.random.default_rng(0).random(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.__cause__ is not None
    assert [path.name for path in tmp_path.iterdir()] == ["000000-step-1"]
    assert_identical(saver.restore(small_state(0)), (1, small_state(1)))


CHILD = """
import sys
import numpy as np
from bqfd_jax.runs.checkpoint import Checkpointer
saver = Checkpointer(sys.argv[1], keep=2, on_skip=lambda message: None)
def state(step):
    x, y = np.full(300_000, step), np.random.default_rng(step).random(100_000)
    return {"state": {"x": x, "y": y}}
found = saver.restore(state(0))
step = 0 if found is None else found[0]
while True:
    step += 1
    saver.save(step, state(step))
    print(step, flush=True)
"""


def test_kill_in_the_middle_of_saving(tmp_path):
    repository = str(Path(bqfd_jax.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": repository, "JAX_PLATFORMS": "cpu"}
    rng = np.random.default_rng(0)
    directory = tmp_path / "run"
    template = {"x": np.zeros(300_000, np.int64), "y": np.zeros(100_000)}
    leftovers = 0
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(directory)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as child:
            acknowledged = [child.stdout.readline() for _ in range(2)]
            deadline = time.monotonic() + 20
            while not list(directory.glob("tmp-*")) and time.monotonic() < deadline:
                pass
            time.sleep(rng.uniform(0, 0.05))
            child.kill()
            acknowledged += child.stdout.readlines()
        leftovers += len(list(directory.glob("tmp-*")))
        step, state = OneItem(directory, on_skip=lambda message: None).restore(template)
        assert step >= int(acknowledged[-1])
        np.testing.assert_array_equal(state["x"], step)
        np.testing.assert_array_equal(state["y"], np.random.default_rng(step).random(100_000))
    # Otherwise no kill came in the middle of anything, and the test shows nothing.
    assert leftovers > 0


# --- Items ---


def two_items(value):
    big = np.arange(1000) + value
    return {"learner": small_state(value), "replay": {"frame": big}, "run": {"seconds": 0.5}}


def test_items_come_back_by_name_in_the_order_asked_for(tmp_path):
    saver = Checkpointer(tmp_path)
    path = saver.save(7, two_items(3))
    assert sorted(file.name for file in path.iterdir()) == [
        "learner.zip", "manifest.json", "replay.zip", "run.zip"
    ]  # fmt: skip
    templates = {name: two_items(0)[name] for name in ("run", "learner")}
    step, found = saver.restore(templates)
    assert step == 7
    assert list(found) == ["run", "learner"]
    assert_identical(found["learner"], small_state(3))
    assert found["run"] == {"seconds": 0.5}
    assert_identical(saver.restore(two_items(0))[1], two_items(3))


@pytest.mark.parametrize("damage", [flip_byte, truncate, remove_file])
def test_the_learner_comes_back_whatever_became_of_the_replay(tmp_path, damage):
    messages = []
    saver = Checkpointer(tmp_path, on_skip=messages.append)
    paths = [saver.save(step, two_items(step)) for step in (1, 2)]
    damage(paths[1] / "replay.zip")
    step, found = saver.restore({"learner": small_state(0)})
    assert (step, messages) == (2, [])
    assert_identical(found["learner"], small_state(2))
    both = {name: two_items(0)[name] for name in ("learner", "replay")}
    step, found = saver.restore(both)
    assert step == 1
    assert_identical(found["learner"], small_state(1))
    np.testing.assert_array_equal(found["replay"]["frame"], np.arange(1000) + 1)
    [message] = messages
    assert f"skipped checkpoint {paths[1]}: replay.zip" in message


def test_files_of_items_not_asked_for_are_not_opened(tmp_path, monkeypatch):
    saver = Checkpointer(tmp_path)
    saver.save(1, two_items(1))
    opened = []
    read = checkpoint.read_item
    monkeypatch.setattr(
        checkpoint, "read_item", lambda path, *rest: opened.append(path.name) or read(path, *rest)
    )
    saver.restore({"learner": small_state(0)})
    assert opened == ["learner.zip"]


def test_an_item_that_is_not_there_is_an_error_not_damage(tmp_path):
    saver = Checkpointer(tmp_path, on_skip=pytest.fail)
    saver.save(1, two_items(1))
    saver.save(2, {"learner": small_state(2), "run": {"seconds": 1.0}})
    with pytest.raises(CheckpointError, match=r"step-2 has no item replay, only learner, run"):
        saver.restore(two_items(0))


def test_a_difference_names_the_item(tmp_path):
    saver = Checkpointer(tmp_path)
    saver.save(1, two_items(1))
    with pytest.raises(CheckpointError, match=r"replay\['frame'\]: stored int64\[1000\]"):
        saver.restore({"replay": {"frame": np.zeros(3)}})


@pytest.mark.parametrize("name", ["", "../up", "Replay", "a b", ".hidden", "manifest.json"])
def test_names_of_items_are_words(tmp_path, name):
    with pytest.raises(ValueError, match="must be a lower-case word"):
        Checkpointer(tmp_path).save(1, {name: small_state(1)})
    assert list(tmp_path.iterdir()) == []

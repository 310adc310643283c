"""Rows survive crashes and resumes, and all that is written is strict JSON."""

import json
import os
import sys
from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.metrics import MetricsWriter, read_jsonl
from bqfd_jax.runs.mirrors import check_trackers


def strict_loads(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not strict JSON")

    return json.loads(text, parse_constant=refuse)


def test_rows_are_on_disk_at_once(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    with closing(MetricsWriter(path)) as writer:
        writer.write({"step": 1})
        assert read_jsonl(path) == [{"step": 1}]
        assert writer.position() == path.stat().st_size == len('{"step": 1}\n')
        writer.write({"step": 2, "name": "Ü\n"})
        assert read_jsonl(path) == [{"step": 1}, {"step": 2, "name": "Ü\n"}]
        assert writer.position() == path.stat().st_size


def test_values_become_plain_and_strict(tmp_path):
    path = tmp_path / "metrics.jsonl"
    row = {
        "jax": jnp.float32(0.5),
        "numpy": np.int64(2**40),
        "bool": np.bool_(True),
        "half": jnp.array([1.5, jnp.nan], jnp.bfloat16),
        "matrix": np.array([[1.0, np.inf], [-np.inf, 2.0]]),
        "nan": float("nan"),
        "jax_nan": jnp.asarray(jnp.nan),
        "nested": {"list": [np.float32(1), None, (True, "x")]},
        "path": tmp_path,
    }
    with closing(MetricsWriter(path)) as writer:
        writer.write(row)
    assert strict_loads(path.read_text()) == {
        "jax": 0.5,
        "numpy": 2**40,
        "bool": True,
        "half": [1.5, None],
        "matrix": [[1.0, None], [None, 2.0]],
        "nan": None,
        "jax_nan": None,
        "nested": {"list": [1.0, None, [True, "x"]]},
        "path": str(tmp_path),
    }


@pytest.mark.parametrize("value", [object(), b"bytes", jax.random.key(0)])
def test_a_row_that_json_cannot_hold_writes_nothing(tmp_path, value):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsWriter(path)) as writer:
        writer.write({"step": 1})
        with pytest.raises(TypeError, match=r"\['loss'\]\[1\] is a"):
            writer.write({"step": 2, "loss": [0, value]})
        writer.write({"step": 3})
    assert read_jsonl(path) == [{"step": 1}, {"step": 3}]


def test_resume_forgets_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsWriter(path)) as writer:
        writer.write({"step": 1})
        position = writer.position()
        writer.write({"step": 2})
        writer.write({"step": 3})
    with closing(MetricsWriter(path, position=position)) as writer:
        assert writer.position() == position
        writer.write({"step": 2, "again": True})
    assert read_jsonl(path) == [{"step": 1}, {"step": 2, "again": True}]
    with closing(MetricsWriter(path)) as writer:
        writer.write({"step": 4})
    assert [row["step"] for row in read_jsonl(path)] == [1, 2, 4]
    with closing(MetricsWriter(path, position=0)):
        pass
    assert path.read_bytes() == b""


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_shorter_than_the_checkpoint_says(tmp_path, exists):
    path = tmp_path / "metrics.jsonl"
    size = path.write_text('{"step": 1}\n') if exists else 0
    with pytest.raises(ValueError, match=f"after byte 100: it has only {size} bytes"):
        MetricsWriter(path, position=100)
    assert path.exists() == exists


@pytest.mark.parametrize("half", ['{"step": 2, "lo', '{"step": 2}', "x" * 200_000])
def test_half_written_last_line_is_dropped(tmp_path, half):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + half)
    assert read_jsonl(path) == [{"step": 1}]
    with closing(MetricsWriter(path)) as writer:
        writer.write({"step": 3})
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_half_written_line_before_the_position_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    with closing(MetricsWriter(path, position=15)) as writer:
        assert writer.position() == 12


def test_failed_write_leaves_whole_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with closing(MetricsWriter(path)) as writer:
        writer.write({"step": 1})

        class Full:
            def __init__(self, file):
                self.file = file

            def write(self, line):
                return self.file.write(line[:5])

            def truncate(self, size):
                return self.file.truncate(size)

        real, writer._file = writer._file, Full(writer._file)
        with pytest.raises(OSError, match="only 5 of 12 bytes"):
            writer.write({"step": 2})
        writer._file = real
        writer.write({"step": 3})
    assert read_jsonl(path) == [{"step": 1}, {"step": 3}]


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_jsonl(path)


def events_of(directory):
    """(step, tag, value) of all scalars, and the purge marks, from the files themselves."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    scalars, purged = [], []
    for path in sorted(directory.iterdir(), key=os.path.getmtime):
        data = path.read_bytes()
        while data:
            # A record is: length, checksum of it, the event, checksum of that.
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            scalars += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            if event.session_log.status == SessionLog.START:
                purged.append(event.step)
    return scalars, purged


def test_tensorboard_mirrors_numbers(tmp_path):
    pytest.importorskip("tensorboardX")
    path, mirror = tmp_path / "metrics.jsonl", tmp_path / "tb"
    with closing(MetricsWriter(path, tensorboard_dir=mirror)) as writer:
        writer.write({"step": np.int32(3), "loss": jnp.float32(0.5), "name": "x", "nan": np.nan})
        writer.write({"loss": 9.0})
        position = writer.position()
        writer.write({"step": 5, "loss": 1, "done": True})
    assert len(read_jsonl(path)) == 3
    scalars, _ = events_of(mirror)
    assert scalars == [(3, "loss", 0.5), (5, "loss", 1.0)]
    with closing(MetricsWriter(path, position=position, tensorboard_dir=mirror)):
        pass
    # Step 5 was rolled back: TensorBoard is told to forget all from step 4 on.
    assert events_of(mirror)[1][-1] == 4


def test_without_tensorboardx_the_error_says_what_to_install(tmp_path, monkeypatch):
    check_trackers(tensorboard=True)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(ImportError, match=r"pip install -e '\.\[tensorboard\]'"):
        MetricsWriter(path, tensorboard_dir=tmp_path / "tb")
    assert not path.exists()
    MetricsWriter(path).close()
    # And before a run begins.
    check_trackers(tensorboard=False)
    with pytest.raises(UsageError, match=r"pip install -e '\.\[tensorboard\]'"):
        check_trackers(tensorboard=True)

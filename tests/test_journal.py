"""What a run remembers of itself, whatever becomes of its folder."""

import json
import shutil

import numpy as np
import pytest
from run_sinks import Noting

from bqfd_jax.runs import folder as run_folder
from bqfd_jax.runs.errors import FolderBusyError, RunError
from bqfd_jax.runs.journal import Journal
from bqfd_jax.runs.metrics import read_jsonl


def make_run(path, **config):
    run_folder.prepare(path, {"experiment": "gym", "env": "A-v0", "steps": 10} | config, name="x")
    return path


def begin(path, sink=None):
    journal = Journal(path, sink or Noting())
    restored = journal.restore({"state": {"x": np.zeros(2)}})
    journal.open()
    return journal, restored


def save(journal, step):
    assert journal.save(step, {"state": {"x": np.full(2, float(step))}})


def test_rows_and_state_go_on_from_the_last_checkpoint(tmp_path):
    journal, restored = begin(make_run(tmp_path / "run"))
    assert restored is None
    journal.write({"step": 1})
    save(journal, 1)
    journal.write({"step": 2})  # lost with the process
    journal.close()
    journal, (step, items) = begin(tmp_path / "run")
    assert step == 1
    np.testing.assert_array_equal(items["state"]["x"], [1.0, 1.0])
    assert journal.rows == [{"step": 1}] == read_jsonl(tmp_path / "run" / "metrics.jsonl")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    for name, env in (("one", "A-v0"), ("other", "B-v0")):
        journal, _ = begin(make_run(tmp_path / name, env=env))
        save(journal, 1)
        journal.close()
    shutil.rmtree(tmp_path / "one" / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", tmp_path / "one" / "checkpoints")
    with pytest.raises(RunError, match=r"step 1 .* was made by another run"):
        begin(tmp_path / "one")


def test_a_run_may_be_lengthened(tmp_path):
    journal, _ = begin(make_run(tmp_path / "run"))
    save(journal, 1)
    config = run_folder.read_config(tmp_path / "run")
    run_folder.write_config(tmp_path / "run", config | {"steps": 99, "replay_rows": 7})
    assert begin(tmp_path / "run")[1][0] == 1


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_deleted_while_a_run_goes_on_is_written_anew(tmp_path, what):
    sink = Noting()
    path = make_run(tmp_path / "run")
    config = (path / "config.json").read_text()
    journal, _ = begin(path, sink)
    journal.write({"step": 1})
    save(journal, 1)
    if what == "folder":
        shutil.rmtree(path)
    else:
        (path / "metrics.jsonl").unlink()
    journal.write({"step": 2})
    assert read_jsonl(path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]
    assert (path / "config.json").read_text() == config
    [warning] = sink.warnings
    assert "is gone" in warning
    save(journal, 2)
    journal.close()
    assert begin(path)[1][0] == 2


@pytest.mark.parametrize("damage", ["missing", "short", "garbled"])
def test_rows_that_were_lost_come_back_with_the_checkpoint(tmp_path, damage):
    path = make_run(tmp_path / "run")
    journal, _ = begin(path)
    for step in (1, 2):
        journal.write({"step": step})
        save(journal, step)
    journal.close()
    metrics = path / "metrics.jsonl"
    if damage == "missing":
        metrics.unlink()
    elif damage == "short":
        metrics.write_text('{"step": 1}\n')
    else:
        metrics.write_text(metrics.read_text().replace("{", "["))
    sink = Noting()
    journal, (step, _) = begin(path, sink)
    assert step == 2
    assert journal.rows == [{"step": 1}, {"step": 2}]
    assert len(sink.warnings) == 1
    # Without a copy nothing can be done about it.
    journal.close()
    (path / "checkpoints" / "metrics.jsonl").unlink()
    metrics.unlink()
    with pytest.raises(RunError, match="Put the file back"):
        begin(path)


def test_a_full_disk_does_not_end_a_run(tmp_path, monkeypatch):
    sink = Noting()
    journal, _ = begin(make_run(tmp_path / "run"), sink)
    write = journal._writer.write
    monkeypatch.setattr(
        journal._writer, "write", lambda row: (_ for _ in ()).throw(OSError(28, ""))
    )
    journal.write({"step": 1})
    assert journal.save(1, {"state": {"x": np.zeros(2)}}) is None
    assert [text.split(" at ")[0] for text in sink.warnings][-1] == "NO CHECKPOINT"
    monkeypatch.setattr(journal._writer, "write", write)
    journal.write({"step": 2})
    assert read_jsonl(tmp_path / "run" / "metrics.jsonl") == [{"step": 1}, {"step": 2}]


def test_a_folder_has_one_user_at_a_time(tmp_path):
    path = make_run(tmp_path / "run")
    with (
        run_folder.sole_use(path),
        pytest.raises(FolderBusyError, match="another process"),
        run_folder.sole_use(path),
    ):
        pass
    with run_folder.sole_use(path):
        assert json.loads((path / "config.json").read_text())["env"] == "A-v0"

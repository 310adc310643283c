"""Options as `config.json` holds them, and back."""

import dataclasses
import json
from pathlib import Path

import pytest

from bqfd_jax.runs import folder, stored
from bqfd_jax.runs.errors import UsageError
from experiments.deep_sea.config import Config as DeepSeaConfig
from experiments.expert_quality.config import Config as MapConfig


@dataclasses.dataclass(frozen=True)
class Inner:
    widths: tuple[int, ...] = (1,)
    rate: float = 0.5


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str = "a"
    inner: Inner = Inner()
    limit: int | None = None
    out: Path | None = None


def through_json(config, *, without=()):
    return json.loads(json.dumps(stored.to_fields(config, "outer", without=without)))


def test_fields_by_hand():
    fields = through_json(Outer(inner=Inner((2, 3)), out=Path("x")), without=("out",))
    assert list(fields.items()) == [
        ("experiment", "outer"),
        ("name", "a"),
        ("inner", {"widths": [2, 3], "rate": 0.5}),
        ("limit", None),
    ]
    config = stored.from_fields(Outer(limit=7, out=Path("y")), fields)
    assert config == Outer(inner=Inner((2, 3)), limit=None, out=Path("y"))


def test_what_is_not_stored_is_as_in_the_default():
    assert stored.from_fields(Outer(limit=7), {"inner": {"rate": 0.1}}) == Outer(
        inner=Inner(rate=0.1), limit=7
    )


@pytest.mark.parametrize("fields", [{"length": 3}, {"inner": {"length": 3}}])
def test_options_that_nobody_knows_are_named(fields):
    with pytest.raises(ValueError, match="has no option length"):
        stored.from_fields(Outer(), fields)


def test_a_folder_whose_options_make_no_sense_is_named(tmp_path):
    folder.write_config(tmp_path, {"experiment": "deep_sea", "bqfd": {"gamma": 1.5}})
    with pytest.raises(UsageError, match=r"config\.json cannot be understood: .*gamma is 1\.5"):
        stored.load(tmp_path, DeepSeaConfig.from_stored)
    with pytest.raises(UsageError, match="there is no run in"):
        stored.load(tmp_path / "nowhere", DeepSeaConfig.from_stored)


@pytest.mark.parametrize(
    "config",
    [
        DeepSeaConfig(torso=(3, 4), agents=("dqn",), dqn=MapConfig(quick=True).resolved().dqn),
        MapConfig(quick=True).resolved(),
        MapConfig(qualities=("two",)).resolved(),
    ],
)
def test_experiments_come_back_from_their_folders(config, tmp_path):
    folder.write_config(tmp_path, config.stored())
    assert stored.load(tmp_path, type(config).from_stored) == config

"""Options as `config.json` holds them, and back."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bqfd_jax.runs import folder
from bqfd_jax.runs.errors import UsageError

Config = TypeVar("Config")
# What `config.json` tells besides: what the folder is of, and digests of what was shown.
_NO_OPTIONS = ("experiment", "demonstrations")


def to_fields(config: Any, experiment: str, *, without: Collection[str]) -> dict[str, Any]:
    """A dataclass as JSON-able dicts, led by the name of its experiment.

    Args:
      config: the options.
      experiment: what the run folder is of.
      without: fields that do not change what is computed.
    """
    fields = {k: v for k, v in dataclasses.asdict(config).items() if k not in without}
    return {"experiment": experiment} | fields


def from_fields(default: Config, fields: Mapping[str, Any]) -> Config:
    """A config as `to_fields` stored it; what it lacks is as in `default`.

    Args:
      default: a dataclass, whose fields may be dataclasses too.
      fields: what was read from JSON.

    Raises:
      ValueError: there is a field that `default` does not have, or a value that cannot be.
    """
    known = {field.name for field in dataclasses.fields(default)}
    given = {name: value for name, value in fields.items() if name not in _NO_OPTIONS}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(f"{type(default).__name__} has no option {', '.join(unknown)}")
    options = {name: _option(getattr(default, name), value) for name, value in given.items()}
    return dataclasses.replace(default, **options)


def _option(default: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(default) and isinstance(value, Mapping):
        return from_fields(default, value)
    # JSON knows no tuples, and options are never lists.
    return tuple(value) if isinstance(value, list) else value


def load(path: Path, from_stored: Callable[[dict[str, Any]], Config]) -> Config:
    """The options of a run folder; raises `UsageError` if they cannot be known.

    Args:
      path: the folder.
      from_stored: makes a config of what `config.json` holds.
    """
    try:
        return from_stored(folder.read_config(path))
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path / 'config.json'} cannot be understood: {error}") from error

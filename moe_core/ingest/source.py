"""From a path, a mapping or an in-memory config to plain mappings. Reads local files only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from moe_core.ingest.errors import IngestError, Trouble, show

CONFIG_FILE = "config.json"
QUANT_FILE = "hf_quant_config.json"


@runtime_checkable
class HasToDict(Protocol):
    """An in-memory configuration, such as a ``transformers`` ``PreTrainedConfig``."""

    def to_dict(self) -> dict[str, Any]:
        """The configuration as a plain dictionary."""


Source = str | os.PathLike[str] | Mapping[str, Any] | HasToDict


class Loaded(NamedTuple):
    """A config in memory, with the quantization file that lay beside it."""

    name: str
    config: Mapping[str, Any]
    quant_file: Mapping[str, Any] | None


def load(source: Source) -> Loaded:
    """Read `source`; raises :class:`IngestError` when there is nothing to read or it is not JSON."""
    if isinstance(source, Mapping):
        return Loaded(_own_name(source), source, None)
    if isinstance(source, (str, os.PathLike)):
        return _load_path(Path(source), asked=os.fspath(source))
    if isinstance(source, HasToDict):
        config = source.to_dict()
        return Loaded(_own_name(config), config, None)
    raise IngestError(
        type(source).__name__,
        (Trouble(f"an object of type {type(source).__name__}", "a path, a mapping or an object with to_dict()"),),
    )


def _load_path(path: Path, asked: str) -> Loaded:
    try:
        is_folder = path.is_dir()
    except OSError:  # longer than a path can be
        is_folder = False
    file = path / CONFIG_FILE if is_folder else path
    if not _is_file(file):
        raise IngestError(show(asked), (_nothing_there(asked, is_folder),))
    name = path.resolve().name if is_folder else path.stem
    if not is_folder and path.name == CONFIG_FILE:
        name = path.resolve().parent.name
    troubles: list[Trouble] = []
    config = _read(file, troubles)
    beside = file.with_name(QUANT_FILE)
    quant = _read(beside, troubles) if beside.is_file() and beside != file else None
    if troubles or config is None:
        raise IngestError(asked, tuple(troubles))
    return Loaded(name, config, quant)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _nothing_there(asked: str, is_folder: bool) -> Trouble:
    needed = f"a {CONFIG_FILE}, or a folder that holds one"
    if is_folder:
        return Trouble(f"a folder without {CONFIG_FILE}", needed)
    if asked.lstrip().startswith("{"):
        return Trouble("JSON text", needed, "parse it, and give the mapping")
    if asked.count("/") == 1 and not asked.startswith((".", "/", "~")):
        hint = f"if {asked} is the name of a model on a hub, download its {CONFIG_FILE} and give the local path"
        return Trouble("no such file or folder", needed, hint)
    return Trouble("no such file or folder", needed, "check the path")


def _read(file: Path, troubles: list[Trouble]) -> Mapping[str, Any] | None:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        troubles.append(Trouble(f"{file.name} cannot be read ({error})", "a readable UTF-8 file"))
    except json.JSONDecodeError as error:
        troubles.append(
            Trouble(f"{file.name} is not JSON ({error.msg} at line {error.lineno}, column {error.colno})", "valid JSON")
        )
    else:
        if isinstance(value, dict):
            return value
        troubles.append(Trouble(f"{file.name} holds a JSON {type(value).__name__}", "a JSON object"))
    return None


def _own_name(config: Mapping[str, Any]) -> str:
    name = config.get("_name_or_path") or config.get("model_type") or "config"
    return str(name).rstrip("/").rpartition("/")[2]

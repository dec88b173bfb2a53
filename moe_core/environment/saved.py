"""Environments as JSON files, so that one machine can be asked about on another."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from moe_core.contract.environment import MoEEnvironment
from moe_core.environment.presets import is_preset, preset, presets_like
from moe_core.environment.process import current

if TYPE_CHECKING:
    from moe_core.registry import Registry

THIS = "this"
"""The name of the machine that asks."""


def save(environment: MoEEnvironment, path: str | PathLike[str]) -> None:
    """Write `environment` as a JSON file that :func:`load` reads back equal."""
    Path(path).write_text(environment.to_json() + "\n", encoding="utf-8")


def load(path: str | PathLike[str]) -> MoEEnvironment:
    """The environment that :func:`save` wrote. Raises ``ValueError``, with everything that is wrong with the file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"cannot read the environment file {path}: {cause}") from error
    try:
        return MoEEnvironment.from_json(text)
    except ValidationError as error:
        raise ValueError(f"{path} is no saved environment:{_wrongs(error)}") from error


def resolve_environment(text: str, registry: Registry | None = None) -> MoEEnvironment:
    """The environment that a word names: ``this`` machine, a preset, or the path of a saved one.

    Raises ``ValueError`` when it is none of them. `registry`: see :func:`moe_core.environment.current`.
    """
    if text == THIS:
        return current(registry)
    if is_preset(text):
        return preset(text)
    if text.endswith(".json") or Path(text).is_file():
        return load(text)
    raise ValueError(f"{text!r} names no machine: it is no preset, no file and not {THIS!r}; {presets_like(text)}")


def _wrongs(error: ValidationError) -> str:
    lines = [(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors(include_url=False)]
    return "".join(f"\n  {field}: {message}" if field else f"\n  {message}" for field, message in lines)

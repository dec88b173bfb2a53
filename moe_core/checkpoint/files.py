"""A folder of safetensors files: where each key is, and reading parts of it without loading the rest."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from moe_core.checkpoint.errors import CheckpointError

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"

_DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {
        "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
        "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
        "BOOL": torch.bool,
    }
)  # fmt: skip
_IN_LAYER: Final = re.compile(r"(?P<prefix>(?:.*?\.)?(?:layers|blocks|h)\.(?P<layer>\d+)\.)(?P<path>.+)")


@dataclass(frozen=True)
class Checkpoint:
    """The keys of a checkpoint. It holds no tensor and no open file."""

    name: str
    file_of: Mapping[str, Path]
    """The file of every key."""
    config: Mapping[str, Any]
    """The ``config.json`` that lies beside the files; empty where there is none."""

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """The checkpoint in a folder, or in one safetensors file.

        A folder has an index, one ``model.safetensors``, or any number of safetensors files with different keys.
        Raises :class:`CheckpointError` when there is nothing to read or it is not safetensors.
        """
        path = Path(path)
        folder, files = (path, _files_in(path)) if path.is_dir() else (path.parent, [path])
        with _unreadable(path):
            file_of = _indexed(folder) if (folder / INDEX) in files else _listed(path, files)
            config = folder / "config.json"
            return cls(path.resolve().name, file_of, json.loads(config.read_text()) if config.is_file() else {})

    @cached_property
    def layers(self) -> Mapping[int, Mapping[str, tuple[str, ...]]]:
        """The keys of each layer, as the paths that follow each prefix such as ``model.layers.3.``."""
        layers: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for key in self.file_of:
            if (match := _IN_LAYER.fullmatch(key)) is not None:
                layers[int(match["layer"])][match["prefix"]].append(match["path"])
        return {n: {prefix: tuple(paths) for prefix, paths in found.items()} for n, found in sorted(layers.items())}

    @property
    def model_types(self) -> tuple[str, ...]:
        """``model_type`` of the config and of its parts."""
        parts = [self.config, *(part for part in self.config.values() if isinstance(part, dict))]
        return tuple(str(part["model_type"]) for part in parts if part.get("model_type"))

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The quantization config; empty where there is none."""
        parts = (self.config, self.config.get("text_config") or {})
        return next((found for part in parts if (found := part.get("quantization_config"))), {})

    @contextmanager
    def reading(self) -> Iterator[OpenFiles]:
        """Open files as they are needed, and close them all at the end."""
        with ExitStack() as stack:
            yield OpenFiles(self, stack)


class OpenFiles:
    """Reads parts of tensors. What is not asked for stays on disk."""

    def __init__(self, checkpoint: Checkpoint, stack: ExitStack) -> None:
        self._checkpoint, self._stack = checkpoint, stack
        self._open: dict[Path, Any] = {}

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of the tensor `key`, from its file's header."""
        return tuple(self._slice(key).get_shape())

    def dtype(self, key: str) -> torch.dtype | str:
        """Element type of the tensor `key`; the name in the file for one that torch does not have."""
        name: str = self._slice(key).get_dtype()
        return _DTYPES.get(name, name)

    def read(self, key: str, index: tuple[slice, ...] = ()) -> torch.Tensor:
        """The part of the tensor `key` at `index`, one slice per dimension; without one, all of it."""
        part: torch.Tensor = self._slice(key)[index or ...]
        return part

    def _slice(self, key: str) -> Any:
        path = self._checkpoint.file_of[key]
        with _unreadable(path):
            if path not in self._open:
                self._open[path] = self._stack.enter_context(safe_open(path, framework="pt"))
            return self._open[path].get_slice(key)


def _files_in(folder: Path) -> list[Path]:
    for name in (INDEX, SINGLE):
        if (folder / name).is_file():
            return [folder / name]
    return sorted(folder.glob("*.safetensors"))


def _indexed(folder: Path) -> dict[str, Path]:
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    return {key: folder / file for key, file in weight_map.items()}


def _listed(asked: Path, files: list[Path]) -> dict[str, Path]:
    file_of: dict[str, Path] = {}
    twice = []
    for path in files:
        with _unreadable(path), safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                if key in file_of:
                    twice.append(f"{key}: found in {file_of[key].name} and {path.name}, needed once")
                file_of[key] = path
    if not file_of:
        twice.append("found no safetensors file, needed one; convert other formats first")
    if twice:
        raise CheckpointError(f"the checkpoint {asked}", twice)
    return file_of


@contextmanager
def _unreadable(path: Path) -> Iterator[None]:
    """Name the file in what goes wrong inside."""
    try:
        yield
    except (OSError, SafetensorError, json.JSONDecodeError, KeyError) as error:
        raise CheckpointError(f"the checkpoint {path}", [f"it cannot be read: {error}"]) from error

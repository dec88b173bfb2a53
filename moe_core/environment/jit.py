"""Whether kernels may be compiled at run time."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path


def can_jit(environ: Mapping[str, str]) -> bool:
    """Whether Triton finds what it needs to compile: a C compiler, and a cache directory that can be written."""
    return _finds_compiler(environ) and _can_be_written(_cache_directory(environ))


def _finds_compiler(environ: Mapping[str, str]) -> bool:
    chosen = shlex.split(environ.get("CC", ""))[:1]
    return any(shutil.which(name, path=environ.get("PATH")) for name in chosen or ("gcc", "clang"))


def _cache_directory(environ: Mapping[str, str]) -> Path:
    if named := environ.get("TRITON_CACHE_DIR"):
        return Path(named)
    return Path(environ.get("TRITON_HOME") or os.path.expanduser("~")) / ".triton" / "cache"


def _can_be_written(directory: Path) -> bool:
    existing = next((d for d in (directory, *directory.absolute().parents) if d.exists()), None)
    return existing is not None and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)

"""Booby traps for whatever an answer may not depend on: the machine, the environment, the clock, files, chance.

Two watchers of the interpreter see what happens, however the culprit got hold of it: audit events (files, imports,
processes, sockets, libraries), and the profiler's view of every call (the rest). Only a C function that is called by
another C function, as in ``map(time.time, ...)``, goes unseen; the comparison of processes is there for that.
"""

from __future__ import annotations

import datetime
import gc
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

ADVICE: Final = {
    "clock": "an answer may not change with time",
    "randomness": "an answer may not depend on chance",
    "environment variables": "require flag(NAME, value): the probe reads declared variables",
    "imports": "require package(NAME) or feature(NAME): the probe looks for declared packages",
    "device": "require the environment's own facts: device, sm, device_memory, link and so on",
    "files and system": "look in moe_facts(), and require the fact plugin:<provider>.<name>",
    "processes and network": "look in moe_facts(), and require the fact plugin:<provider>.<name>",
}
"""The kinds of what is trapped, and what to do instead."""

_KIND_OF_EVENT: Final = {
    "import": "imports",
    "open": "files and system",
    "glob": "files and system",
    "shutil": "files and system",
    "tempfile": "files and system",
    "pathlib": "files and system",
    "sqlite3": "files and system",
    "mmap": "files and system",
    "fcntl": "files and system",
    "os": "files and system",
    "socket": "processes and network",
    "subprocess": "processes and network",
    "urllib": "processes and network",
    "http": "processes and network",
    "ctypes": "device",
}
_KIND_OF_MODULE: Final = {
    "time": "clock",
    "random": "randomness",
    "secrets": "randomness",
    "uuid": "randomness",
    "_uuid": "randomness",
    "posix": "files and system",
    "nt": "files and system",
    "importlib": "imports",
    "importlib.metadata": "imports",
    "importlib.util": "imports",
    "pkgutil": "imports",
    "platform": "device",
    "_ctypes": "device",
    "_socket": "processes and network",
    "_posixsubprocess": "processes and network",
}
_KIND_OF_PACKAGE: Final = {"torch": "device", "triton": "device", "pynvml": "device", "ctypes": "device"}
_HEAVY_EVENTS: Final = frozenset({"ctypes.dlopen", "subprocess.Popen", "os.posix_spawn", "os.fork", "os.system"})
_ENVIRON: Final = ("_Environ.", "getenv", "getenvb")
_PURE: Final = frozenset({"fspath"})
_NOW: Final = frozenset({"now", "utcnow", "today"})


class ImpureError(AssertionError):
    """An answer touched something other than its arguments."""

    def __init__(self, kind: str, what: str) -> None:
        self.kind = kind
        super().__init__(f"touched {kind}: {what}; {ADVICE[kind]}")


class _Traps:
    """The state that the watchers share. Audit hooks cannot be removed, so one is installed and is mostly asleep."""

    is_installed = False
    is_armed = False
    sprung: ImpureError | None = None
    watched: list[str] | None = None

    def spring(self, kind: str, what: str) -> None:
        """Raise; and remember, because the culprit may catch it."""
        error = ImpureError(kind, what)
        self.sprung = self.sprung or error
        raise error


_traps = _Traps()


def install() -> None:
    """Set the traps, once per process and for good. They do nothing until :func:`armed`."""
    if not _traps.is_installed:
        sys.addaudithook(_on_event)
        _traps.is_installed = True


@contextmanager
def armed() -> Iterator[None]:
    """Inside the block, whatever touches more than memory raises :class:`ImpureError`; so does leaving the block,
    when the error was swallowed. The traps must be installed.
    """
    if not _traps.is_installed:
        raise RuntimeError("the traps are not set; call moe_core.testing.traps.install() before importing the plugin")
    was_collecting, profiler = gc.isenabled(), sys.getprofile()
    gc.disable()  # finalizers of bystanders may close files
    _traps.sprung, _traps.is_armed = None, True
    sys.setprofile(_on_call)
    try:
        yield
    finally:
        sys.setprofile(profiler)
        _traps.is_armed = False
        if was_collecting:
            gc.enable()
    if _traps.sprung is not None:
        raise _traps.sprung


@contextmanager
def watched() -> Iterator[list[str]]:
    """Inside the block, a list of the libraries that are opened and the programs that are started."""
    events: list[str] = []
    _traps.watched = events
    try:
        yield events
    finally:
        _traps.watched = None


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    # The library None is the process itself; ctypes opens it when it is imported.
    if _traps.watched is not None and event in _HEAVY_EVENTS and arguments[:1] != (None,):
        _traps.watched.append(_shown(event, arguments))
    if not _traps.is_armed:
        return
    kind = _KIND_OF_EVENT.get(event.partition(".")[0])
    if kind is not None:
        _traps.spring(kind, _shown(event, arguments))


def _shown(event: str, arguments: tuple[Any, ...]) -> str:
    return f"{event}({', '.join(map(repr, arguments[:1]))})"


def _on_call(frame: FrameType, event: str, function: Any) -> None:
    if event == "call":
        _on_python_call(frame)
    elif event == "c_call":
        _on_c_call(function)


def _on_python_call(frame: FrameType) -> None:
    module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
    if module == "os" and name.startswith(_ENVIRON):
        _traps.spring("environment variables", f"os.environ, {frame.f_locals.get('key', name)!r}")
    kind = _kind_of(module)
    if kind is not None and frame.f_code.co_name != "<module>":
        _traps.spring(kind, f"{module}.{name}()")


def _on_c_call(function: Any) -> None:
    owner = getattr(function, "__self__", None)
    name = function.__qualname__
    if isinstance(owner, type) and issubclass(owner, datetime.date) and function.__name__ in _NOW:
        _traps.spring("clock", f"{name}()")
    if isinstance(owner, random.Random):
        _traps.spring("randomness", f"{name}()")
    module = function.__module__ or type(owner).__module__
    kind = _kind_of(module)
    if kind is not None and name not in _PURE:
        _traps.spring("randomness" if name in ("urandom", "getrandom") else kind, f"{module}.{name}()")


def _kind_of(module: str) -> str | None:
    return _KIND_OF_MODULE.get(module) or _KIND_OF_PACKAGE.get(module.partition(".")[0])

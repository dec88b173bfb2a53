"""How long a rank waits for its peers: long while kernels are compiled and tuned, as is native afterwards."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, NamedTuple, Protocol
from weakref import WeakSet

import torch
from torch.distributed import ProcessGroup

logger = logging.getLogger(__name__)

WARMUP_VARIABLE: Final = "TRTLLM_MOE_COMM_WARMUP_TIMEOUT_SEC"
SERVING_VARIABLE: Final = "TRTLLM_MOE_COMM_TIMEOUT_SEC"
DEPRECATED: Final[Mapping[str, str]] = {
    WARMUP_VARIABLE: "TRTLLM_MOE_A2A_WARMUP_TIMEOUT_SEC",
    SERVING_VARIABLE: "TRTLLM_MOE_A2A_TIMEOUT_SEC",
}
"""The former name of each variable."""

WARMUP_SECONDS: Final = 1800
MOST_SECONDS: Final = 86_400


class Budgets(NamedTuple):
    """Seconds to wait for a peer. ``serving`` of ``None`` leaves each transport its own."""

    warmup: int
    serving: int | None


class TimeoutProxy(Protocol):
    """Something that waits for peers, and can be told for how long. Hashable, and open to weak references."""

    name: str

    def set_timeout_seconds(self, seconds: int | None) -> None:
        """Wait no longer than `seconds` from now on; ``None``: what is native."""


class GroupTimeout:
    """The collectives of a process group, as what the guard sets; `native` is the timeout that it was made with."""

    def __init__(self, name: str, group: ProcessGroup, native: timedelta) -> None:
        self.name, self._group, self._native = name, group, native

    def set_timeout_seconds(self, seconds: int | None) -> None:
        """For the collectives that start from now on."""
        self._group.set_timeout(self._native if seconds is None else timedelta(seconds=seconds))


def capturing() -> bool:
    """Whether the current stream is captured into a CUDA graph; never without CUDA."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class TimeoutGuard:
    """Gives every registered proxy the budget of the phase: serving, until :meth:`set_warmup` says otherwise.

    Kernels that spin for their peers trap when one is late, and a trap kills every rank that waits. In warmup ranks
    compile and tune for minutes with no collective in between; in serving nobody should wait that long.

    Budgets are read from `environ` once, when they are first needed. Proxies are held weakly: who owns one keeps it,
    and unregisters it before what it governs is freed.
    """

    def __init__(self, environ: Mapping[str, str], is_capturing: Callable[[], bool] = capturing) -> None:
        self._environ, self._is_capturing = environ, is_capturing
        # Reentrant: a setter may unregister what it finds gone.
        self._lock = threading.RLock()
        self._in_warmup = False
        self._budgets: Budgets | None = None
        self._proxies: WeakSet[TimeoutProxy] = WeakSet()

    def budgets(self) -> Budgets:
        """The budgets; ``ValueError`` names the variable that is not right."""
        with self._lock:
            if self._budgets is None:
                self._budgets = read_budgets(self._environ)
            return self._budgets

    def register(self, proxy: TimeoutProxy) -> None:
        """Give `proxy` the present budget, and the next ones; one whose setter raises is not registered."""
        with self._lock:
            proxy.set_timeout_seconds(self._seconds(in_warmup=self._in_warmup))
            self._proxies.add(proxy)

    def unregister(self, proxy: TimeoutProxy) -> None:
        """Leave `proxy` alone from now on, registered or not."""
        with self._lock:
            self._proxies.discard(proxy)

    def set_warmup(self, in_warmup: bool) -> None:
        """Enter or leave warmup. When a setter raises, those before it get the former budget back.

        Raises ``RuntimeError`` while the current stream is captured: what is launched keeps its timeout in the graph.
        """
        if self._is_capturing():
            raise RuntimeError(
                "the timeouts of MoE communication cannot change while a CUDA graph is captured; "
                "change them before: with serving_timeouts(): capture"
            )
        with self._lock:
            if in_warmup == self._in_warmup:
                return
            if proxies := sorted(self._proxies, key=lambda proxy: proxy.name):
                self._push(proxies, self._seconds(in_warmup=in_warmup), self._seconds(in_warmup=self._in_warmup))
                phase, names = "warmup" if in_warmup else "serving", ", ".join(p.name for p in proxies)
                logger.info("%s budgets for %s", phase, names)
            self._in_warmup = in_warmup

    @contextmanager
    def serving_timeouts(self) -> Iterator[None]:
        """Serving budgets inside the ``with`` block, whatever the phase: where CUDA graphs are captured.

        A graph keeps the timeouts of its launches; captured in warmup, its replays would wait as long as warmup does.
        """
        with self._lock:
            before = self._in_warmup
        self.set_warmup(False)
        try:
            yield
        finally:
            self.set_warmup(before)

    def _seconds(self, *, in_warmup: bool) -> int | None:
        budgets = self.budgets()
        return budgets.warmup if in_warmup else budgets.serving

    def _push(self, proxies: list[TimeoutProxy], seconds: int | None, former: int | None) -> None:
        for place, proxy in enumerate(proxies):
            try:
                proxy.set_timeout_seconds(seconds)
            except BaseException:
                for changed in proxies[:place]:
                    changed.set_timeout_seconds(former)
                raise


def read_budgets(environ: Mapping[str, str]) -> Budgets:
    """The budgets that the variables declare: whole seconds, from 1 to a day; blank is unset.

    A former name is taken with a warning. Raises ``ValueError``, which names the variable, for anything else, for two
    names of one budget that differ, and for warmup shorter than serving.
    """
    warmup = _declared(environ, WARMUP_VARIABLE)
    budgets = Budgets(WARMUP_SECONDS if warmup is None else warmup, _declared(environ, SERVING_VARIABLE))
    if budgets.serving is not None and budgets.warmup < budgets.serving:
        raise ValueError(
            f"{WARMUP_VARIABLE} is {budgets.warmup} s, shorter than {SERVING_VARIABLE} of {budgets.serving} s; "
            "in warmup ranks wait for each other longer, not shorter: raise it"
        )
    return budgets


def _declared(environ: Mapping[str, str], name: str) -> int | None:
    former = DEPRECATED[name]
    value, former_value = _seconds_in(environ, name), _seconds_in(environ, former)
    if former_value is None:
        return value
    if value not in (None, former_value):
        raise ValueError(f"{name} is {value} and {former}, its former name, is {former_value}; unset the latter")
    warnings.warn(f"{former} is now called {name}; set that instead", FutureWarning, stacklevel=2)
    return former_value


def _seconds_in(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    try:
        seconds = int(text)
    except ValueError:
        seconds = 0
    if not 1 <= seconds <= MOST_SECONDS:
        raise ValueError(f"{name} is {environ[name]!r}, needed whole seconds from 1 to {MOST_SECONDS}, or nothing")
    return seconds


_process = TimeoutGuard(os.environ)

budgets = _process.budgets
register = _process.register
unregister = _process.unregister
set_warmup = _process.set_warmup
serving_timeouts = _process.serving_timeouts

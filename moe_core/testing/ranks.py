"""Several ranks on one machine: processes that talk through gloo, or NCCL with a GPU each."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

TIMEOUT = timedelta(seconds=60)
"""After which a collective that not every rank entered becomes an error."""


def run_on_ranks(num_ranks: int, worker: Callable[..., None], *arguments: Any, backend: str = "gloo") -> None:
    """Call ``worker(rank, *arguments)`` on every rank, with the default process group made; raises what a rank raised.

    `worker` is a function at the top level of a file that each rank can execute again, such as a test module.
    """
    source = inspect.getsourcefile(worker)
    assert source is not None, f"{worker!r} has no source file"
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store").as_uri()
        task = (num_ranks, store, backend, source, worker.__name__, arguments)
        spawn(_enter, task, nprocs=num_ranks)  # type: ignore[no-untyped-call]


def _enter(
    rank: int, num_ranks: int, store: str, backend: str, source: str, name: str, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=num_ranks, timeout=TIMEOUT)
    try:
        _load(source, name)(rank, *arguments)
    finally:
        # A group that something still holds when the interpreter ends takes the process down with its threads.
        gc.collect()
        dist.destroy_process_group()


def _load(source: str, name: str) -> Callable[..., None]:
    # By path: the module of a test has no name under which another process could import it.
    spec = importlib.util.spec_from_file_location("worker_module", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    worker: Callable[..., None] = getattr(module, name)
    return worker

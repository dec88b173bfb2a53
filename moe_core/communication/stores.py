"""What ranks tell each other beside the collectives, through a store that is read without waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from torch.distributed import PrefixStore, ProcessGroup, Store  # type: ignore[attr-defined] # exported, says its page

__all__ = ["Store", "shared_part", "store_of", "until"]

POLL_SECONDS: Final = 0.01


def store_of(group: ProcessGroup) -> Store:
    """The store of `group`, through a connection of its own: nobody else's waiting blocks it."""
    cloned: Store = group.get_group_store().clone()  # type: ignore[attr-defined] # torch's stubs lack it
    return cloned


def shared_part(store: Store, name: str, rank: int) -> Store:
    """Where ranks that ask for a part of this name equally often meet: the n-th parts of all ranks are the same."""
    number = store.add(f"moe_core/{name}/{rank}", 1)
    return PrefixStore(f"moe_core/{name}/number {number}", store)


def until(is_true: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition, looking at it at least once; whether it came true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True

"""``moe`` and ``python -m moe_core``: the command line, in a process of its own."""

from __future__ import annotations

import gc
import sys

from moe_core.cli import main


def start() -> None:
    """Run the command of this process, and leave with its exit status."""
    # What a short process makes lives as long as the process: looking for garbage in it is time lost.
    gc.set_threshold(100_000)
    sys.exit(main())


if __name__ == "__main__":
    start()

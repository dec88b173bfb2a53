"""The GPUs of this node, from the ``nvidia-smi`` command: for machines without ``nvidia-ml-py``."""

from __future__ import annotations

import re
from itertools import combinations

from moe_core.contract.vocabulary import LinkKind
from moe_core.environment.gpus import MIB, NOTHING, Fields, Gpu, link_of, node_fields

QUERY = ("name", "compute_cap", "memory.total", "driver_version", "mig.mode.current")
SECONDS = 30
"""Without a persistence daemon the driver starts up for every call, about a second a GPU."""


def run(*arguments: str) -> str:
    """Standard output of ``nvidia-smi``; empty when there is no such command. Raises what ``subprocess`` raises."""
    import shutil
    import subprocess

    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=SECONDS, check=True)
    return done.stdout


def read() -> Fields:
    """The fields of this node's environment; none when there is no command, or no GPU."""
    rows = [
        _cells(line) for line in run(f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits").splitlines()
    ]
    rows = [row for row in rows if len(row) == len(QUERY)]
    if not rows:
        return NOTHING
    gpus = [_gpu(row) for row in rows]
    link = _link(run("topo", "-m"), len(gpus)) if len(gpus) > 1 else None
    return node_fields(gpus, link=link, driver=rows[0][3])


def _cells(line: str) -> list[str | None]:
    """The cells of a row; one that the driver marks as not available or not supported is ``None``."""
    return [None if cell.startswith("[") else cell for cell in (c.strip() for c in line.split(","))]


def _gpu(row: list[str | None]) -> Gpu:
    name, capability, mebibytes, _, mig = row
    # With MIG on, CUDA sees a slice of the GPU whose whole is counted here.
    memory = None if mebibytes is None or mig == "Enabled" else int(mebibytes) * MIB
    return Gpu(name, None if capability is None else int(capability.replace(".", "")), memory)


def _link(topology: str, count: int) -> LinkKind | None:
    """The link, from the matrix of ``topo -m``: rows ``GPU0 X NV18 …``, where NV<n> is n bonded NVLinks."""
    # The terminal's underline codes surround the heading, whose line starts with a tab.
    rows = [line.split()[1:] for line in topology.splitlines() if re.match(r"GPU\d+\s", line)]
    if len(rows) != count or any(len(row) < count for row in rows):
        return None
    return link_of(bool(re.fullmatch(r"NV\d+", rows[a][b])) for a, b in combinations(range(count), 2))

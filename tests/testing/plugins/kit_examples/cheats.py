"""Plugins that break one promise each. Their declarations are light; what they do wrong, they do when asked."""

import contextlib
import ctypes
import datetime
import importlib.metadata
import importlib.util
import itertools
import os
import random
import subprocess
from os import environ
from pathlib import Path
from time import perf_counter
from uuid import uuid4

from kit_examples.honest import Plugin, Tuned, estimate

from moe_core.contract.declare import sm_in
from moe_core.contract.eligibility import MoEEligibility, Rejection
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.resolve import can_implement

count = itertools.count()
dice = random.Random(7)


def touching(touch):
    """Answers as declared, after `touch`; whatever that raises is hidden."""

    def answer(candidate, problem, deployment):
        with contextlib.suppress(Exception):
            touch()
        return can_implement(candidate, problem, deployment)

    return answer


def refusing(reject, when=lambda problem, deployment: True):
    """Answers as declared, but refuses by ``reject(problem, deployment)`` what is accepted and meets `when`."""

    def answer(candidate, problem, deployment):
        declared = can_implement(candidate, problem, deployment)
        if declared and when(problem, deployment):
            return MoEEligibility.no(reject(problem, deployment))
        return declared

    return answer


def too_small(problem, deployment, **changes):
    fields = {"fact": "hidden_size", "found": problem.hidden_size or 0, "needed": "more"}
    return Rejection.of(Reason.SHAPE_UNALIGNED, **fields | changes)


def no_answer(problem, deployment):
    return Rejection.of(Reason.SHAPE_UNALIGNED, fact="what I need", found="nothing", needed="to be told")


def import_a_kernel():
    import kernels_that_nobody_has  # noqa: F401


def first_reason_only(candidate, problem, deployment):
    declared = can_implement(candidate, problem, deployment)
    return declared if declared else MoEEligibility.no(declared.rejections[0])


PLUGINS = [
    Plugin("environ", touching(lambda: os.environ.get("CHEAT"))),
    Plugin("getenv", touching(lambda: os.getenv("CHEAT"))),
    Plugin("early_environ", touching(lambda: "CHEAT" in environ)),
    Plugin("early_clock", touching(perf_counter)),
    Plugin("calendar", touching(lambda: datetime.datetime.now())),
    Plugin("dice", touching(lambda: dice.random())),
    Plugin("entropy", touching(lambda: os.urandom(1))),
    Plugin("unique_id", touching(uuid4)),
    Plugin("file_exists", touching(lambda: os.path.exists("/dev/nvidia0"))),
    Plugin("file_read", touching(Path(__file__).read_text)),
    Plugin("imports", touching(import_a_kernel)),
    Plugin("finds_spec", touching(lambda: importlib.util.find_spec("triton"))),
    Plugin("finds_version", touching(lambda: importlib.metadata.version("torch"))),
    Plugin("driver", touching(lambda: ctypes.CDLL("libcuda.so.1"))),
    Plugin("nvidia_smi", touching(lambda: subprocess.run(["nvidia-smi"], check=False))),
    Plugin("counts", refusing(lambda p, d: too_small(p, d, hint=f"asked {next(count)} times"))),
    Plugin("hashes", refusing(lambda p, d: too_small(p, d, hint=f"{hash('seed')}"))),
    Plugin("refuses_unknown", refusing(no_answer, lambda p, d: p.hidden_size is None)),
    Plugin("refuses_unknown_machine", refusing(no_answer, lambda p, d: d.environment.sm is None)),
    Plugin("too_generous", lambda candidate, problem, deployment: MoEEligibility.ok()),
    Plugin("no_fact", refusing(lambda p, d: too_small(p, d, fact=""))),
    Plugin("no_found", refusing(lambda p, d: too_small(p, d, found=None))),
    Plugin("no_needed", refusing(lambda p, d: too_small(p, d, needed=""))),
    Plugin("untrue", refusing(lambda p, d: too_small(p, d, found=(p.hidden_size or 0) + 1))),
    Plugin("usurper", refusing(lambda p, d: Rejection.of(Reason.BANNED, fact="ban", found="me", needed="not me"))),
    Plugin("first_reason_only", first_reason_only),
    Plugin("contradiction", requirements=(sm_in(80), sm_in(90))),
]


def after(touch):
    """Expects what is expected, after `touch`; whatever that raises is hidden."""

    def expect(problem, deployment, tokens):
        with contextlib.suppress(Exception):
            touch()
        return estimate(problem, deployment, tokens)

    return expect


def changing(problem, deployment, tokens):
    found = estimate(problem, deployment, tokens)
    return found and found.evolve(note=f"asked {next(count)} times")


def eager(problem, deployment, tokens):
    if problem.top_k is None:
        return estimate(problem.evolve(top_k=1), deployment, tokens)
    return estimate(problem, deployment, tokens)


def afraid(problem, deployment, tokens):
    if problem.intermediate_size == 96:
        raise KeyError("no tile for 96")
    return estimate(problem, deployment, tokens)


def imports_numpy(problem, deployment, tokens):
    import numpy as np

    return estimate(problem, deployment, int(np.int64(tokens)))


CHEATING_TUNINGS = [
    Tuned("reads_tables", after(Path(__file__).read_text)),
    Tuned("looks_at_flags", after(lambda: os.environ.get("CHEAT"))),
    Tuned("changes", changing),
    Tuned("eager", eager),
    Tuned("afraid", afraid),
    Tuned("wordless", lambda problem, deployment, tokens: 12.5),
]
HEAVY_TUNING = Tuned("heavy_tuning", imports_numpy)

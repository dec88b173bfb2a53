"""Ask a plugin in processes of its own, with the traps set before it is imported and armed while it answers.

``python -m moe_core.testing.isolated SPEC ORDER`` is one such process and prints JSON; :func:`observe` runs two that
differ in hash seed, in working directory and in the order of the questions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from moe_core.testing import traps
from moe_core.testing.boundary import boundary_cases, typical_question
from moe_core.testing.examples import EXAMPLES
from moe_core.testing.question import TOKENS, Question
from moe_core.testing.subject import Subject, load_subjects

Answer = TypeVar("Answer")

ORDERS: Final = ("forward", "backward")


@dataclass(frozen=True)
class Answers:
    """What one plugin did in one process."""

    candidate: str
    """Fingerprint of its declaration."""
    answers: tuple[str, ...]
    """To :func:`questions_for` it: ``yes`` or ``no`` with its reasons, and the answer's fingerprint."""
    impure: str | None = None
    """What it touched; it was asked nothing more."""
    changed: int | None = None
    """Index of a question that it answered differently when asked again."""


@dataclass(frozen=True)
class Observation:
    """What the plugins of a specification did in one process."""

    imported: tuple[str, ...]
    """Packages that importing the plugin and asking its tuning loaded: not its own, the standard library's, moe_core's
    or what that needs."""
    started: tuple[str, ...]
    """Libraries that were opened and programs that were started meanwhile."""
    plugins: dict[str, Answers]
    """What ``can_implement`` answered."""
    tunings: dict[str, Answers]
    """What ``moe_tuning`` answered, of those that have it."""


def questions_for(subject: Subject) -> tuple[Question, ...]:
    """What a plugin is asked: the edges of its declaration, and examples from everywhere."""
    return tuple(dict.fromkeys([*(case.question for case in boundary_cases(subject.candidate)), *EXAMPLES]))


@lru_cache(maxsize=8)
def observe(spec: str) -> tuple[Observation, Observation]:
    """What the plugins of `spec` do in two fresh processes; ``AssertionError`` with the traceback if one fails."""
    with TemporaryDirectory() as elsewhere:
        running = [
            _start(spec, order, hash_seed=str(seed), cwd=cwd)
            for seed, (order, cwd) in enumerate(zip(ORDERS, (None, elsewhere), strict=True))
        ]
        outputs = [process.communicate() for process in running]
    first, second = (_read(spec, process.returncode, *output) for process, output in zip(running, outputs, strict=True))
    return first, second


def _start(spec: str, order: str, *, hash_seed: str, cwd: str | None) -> subprocess.Popen[str]:
    paths = os.pathsep.join(os.path.abspath(p) for p in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "moe_core.testing.isolated", spec, order],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _read(spec: str, status: int, out: str, error: str) -> Observation:
    assert status == 0, f"{spec} fails in a fresh process:\n{error}"
    found = json.loads(out.splitlines()[-1])
    plugins, tunings = (
        {name: Answers(**{**a, "answers": tuple(a["answers"])}) for name, a in found[hook].items()}
        for hook in ("plugins", "tunings")
    )
    return Observation(tuple(found["imported"]), tuple(found["started"]), plugins, tunings)


def _observe_here(spec: str, order: str) -> Observation:
    import packaging.version  # noqa: F401 - the evaluation of requirements loads it when it first needs it

    traps.install()
    before = _packages()
    with traps.watched() as started:
        subjects = load_subjects(spec)
        for subject in subjects:
            _load_tuning(subject)
    own = {spec.partition(":")[0].partition(".")[0]}
    imported = _packages() - before - own - sys.stdlib_module_names
    return Observation(
        tuple(sorted(imported)),
        tuple(started),
        {str(subject): _interrogate(subject, order, _answer) for subject in subjects},
        {str(subject): _interrogate(subject, order, _tuning) for subject in subjects if subject.is_tuned},
    )


def _load_tuning(subject: Subject) -> None:
    """Ask once, because the first call may import; what that raises is the next call's business."""
    question = typical_question(subject.candidate)
    if question is not None:
        with suppress(Exception):
            subject.tune(question, TOKENS[0])


def _packages() -> set[str]:
    return {name.partition(".")[0] for name in sys.modules}


def _interrogate(subject: Subject, order: str, ask: Callable[[Subject, Question], str]) -> Answers:
    questions = questions_for(subject)
    indices = range(len(questions)) if order == ORDERS[0] else range(len(questions) - 1, -1, -1)
    answers, again, impure = [""] * len(questions), [""] * len(questions), None
    for found, pass_over in ((answers, indices), (again, reversed(indices))):
        for index in pass_over:
            try:
                found[index] = ask(subject, questions[index])
            except traps.ImpureError as error:
                impure = str(error)
                break
    changed = next((i for i, pair in enumerate(zip(answers, again, strict=True)) if len(set(pair)) > 1), None)
    return Answers(subject.candidate.fingerprint, tuple(answers), impure, None if impure else changed)


def _answer(subject: Subject, question: Question) -> str:
    answer = _trapped(lambda: subject.ask(question))
    if isinstance(answer, str):
        return answer
    reasons = ", ".join(f"{r.reason} {r.fact}" for r in answer.rejections)
    return f"{f'no ({reasons})' if reasons else 'yes'} #{answer.fingerprint}"


def _tuning(subject: Subject, question: Question) -> str:
    try:
        is_asked = bool(subject.ask(question))
    except Exception:  # another check's business
        is_asked = False
    if not is_asked:
        return "not asked"
    found = [_trapped(lambda tokens=tokens: subject.tune(question, tokens)) for tokens in TOKENS]  # type: ignore[misc]
    return ", ".join(t if isinstance(t, str) else "nothing" if t is None else f"#{t.fingerprint}" for t in found)


def _trapped(ask: Callable[[], Answer]) -> Answer | str:
    """What `ask` returns with the traps armed, or what it raised."""
    with traps.armed():
        try:
            return ask()
        except traps.ImpureError:
            raise
        except Exception as error:  # another check's business; here only that it is the same every time
            return f"raised {type(error).__name__}"


def main(arguments: Sequence[str]) -> None:
    """Print an :class:`Observation` of SPEC as one line of JSON."""
    spec, order = arguments
    sys.stdout.write(f"\n{json.dumps(asdict(_observe_here(spec, order)))}\n")


if __name__ == "__main__":
    main(sys.argv[1:])

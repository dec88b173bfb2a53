"""Bad input: one clear message, no traceback, exit status 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class BadInputError(Exception):
    """What was given cannot be used; the message says what was found, what is needed, and what to try."""


@contextmanager
def bad_input(asked: str) -> Iterator[None]:
    """Turn the errors of reading what the user gave into :class:`BadInputError`.

    Put it around calls whose ``ValueError`` is about the input, and around nothing else.
    """
    try:
        yield
    except OSError as error:
        raise BadInputError(f"{asked}: {error.strerror or error}: {error.filename}") from error
    except ValueError as error:
        raise BadInputError(f"{asked}: {_message(error)}") from error


def _message(error: ValueError) -> str:
    # Help and complaints about options need no pydantic, and it is slow to import.
    from pydantic import ValidationError

    return "; ".join(_readable(error)) if isinstance(error, ValidationError) else str(error)


def _readable(error: ValidationError) -> Iterator[str]:
    for entry in error.errors(include_url=False):
        place = ".".join(map(str, entry["loc"]))
        found = "" if entry["type"] in ("missing", "value_error") else f", found {entry['input']!r:.60}"
        yield f"{place}: {entry['msg']}{found}" if place else f"{entry['msg']}{found}"

"""Looking at things that are not ours: whatever goes wrong there is logged, and never a crash."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)


def attempt(what: str, look: Callable[[], T], otherwise: T) -> T:
    """What `look` finds; `otherwise`, with the cause in the log, when it raises."""
    try:
        # A deprecation inside a third-party import is no finding, also where warnings are errors.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return look()
    # Drivers and third-party imports fail in any way, SystemExit included: a fact of the machine, not an error of ours.
    except (Exception, SystemExit) as error:
        first = (str(error).splitlines() or [""])[0]
        logger.warning("looking at %s failed, so it counts as absent: %s: %s", what, type(error).__name__, first)
        return otherwise

"""The command line, ``moe``. Light: of its commands, ``run``, ``bench`` and ``tune`` alone import torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

NONE, BAD_INPUT = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    from moe_core.cli.errors import BadInputError
    from moe_core.cli.output import say, show_json
    from moe_core.cli.parser import parse

    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        command, options = parse(arguments)
        if options.command != "doctor":
            _warn()
        status = command.run(options)
        # Here, so that a closed pipe is met inside the try.
        sys.stdout.flush()
        return status
    except BadInputError as error:
        say(f"error: {error}")
        if "--json" in arguments:
            show_json({"error": str(error)})
        return BAD_INPUT
    except BrokenPipeError:
        # The reader (head, less) has seen enough; the interpreter would complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NONE


def _warn() -> None:
    from moe_core.cli.output import say
    from moe_core.environment.variables import unknown_variables

    for warning in unknown_variables(os.environ):
        say(f"warning: {warning}")

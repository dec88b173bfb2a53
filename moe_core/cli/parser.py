"""The command line: one module per command, imported only when it is the one that was asked for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from moe_core.cli.errors import BadInputError

COMMANDS = {
    "explain": "say what each MoE layer of a model would run, and why nothing else",
    "candidates": "list every candidate and what it supports",
    "environment": "show what is known of a machine, or save it",
    "diff": "compare two saved reports",
    "agree": "check that the reports of all ranks agree",
    "doctor": "check plugins, bans and environment variables",
    "plan": "say what one forward would do on each rank",
    "run": "build a layer with random weights, run it, and compare it with its float32 twin",
    "bench": "time candidates and peers side by side on this machine, beside the floor",
    "tune": "time candidates on this machine, and write evidence that a selection takes",
}

EXIT_STATUS = "exit status: 0 a winner (or equal, or healthy), 1 none (or different, or not), 2 bad input"


class Command(Protocol):
    """A module of this package that is a command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it, and return the exit status."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are raised, so that they are reported in one place and one form."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise BadInputError(f"{message}; try: {self.prog} --help")


def parse(arguments: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """The command that `arguments` name, and its options."""
    parser = Parser(prog="moe", description="Explained selection of Mixture-of-Experts layers.", epilog=EXIT_STATUS)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # A command's own module is loaded only if it is the first word that is no option.
    asked = next((a for a in arguments if not a.startswith("-")), None)
    command: Command | None = None
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=EXIT_STATUS
        )
        if name == asked:
            command = cast("Command", import_module(f"moe_core.cli.{name}"))
            command.add_arguments(sub)
            sub.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    assert command is not None, "argparse admits declared commands only"
    return command, options

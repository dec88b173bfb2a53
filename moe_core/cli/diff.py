"""``moe diff``: what differs between two saved reports."""

from __future__ import annotations

import argparse

from moe_core.cli.output import show, show_json
from moe_core.cli.reports import read_report
from moe_core.explain.diff import diff_document, differences


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("left", metavar="A", help="a report that `moe explain --save` wrote")
    parser.add_argument("right", metavar="B", help="another")


def run(options: argparse.Namespace) -> int:
    """Compare; 0 when equal, 1 when not."""
    found = differences(read_report(options.left), read_report(options.right))
    if options.json:
        show_json([difference.model_dump() for difference in found])
    else:
        show(diff_document(found, options.left, options.right))
    return 1 if found else 0

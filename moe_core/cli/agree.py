"""``moe agree``: whether the reports of all ranks agree."""

from __future__ import annotations

import argparse

from moe_core.cli.output import show, show_json
from moe_core.cli.reports import read_report
from moe_core.explain.agree import agreement, agreement_document


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("reports", nargs="+", metavar="REPORT", help="the reports of ranks 0, 1, … in this order")
    parser.add_argument("--all", action="store_true", help="every field that differs, not the first ones")


def run(options: argparse.Namespace) -> int:
    """Compare; 0 when all ranks agree, 1 when not."""
    found = agreement([read_report(path) for path in options.reports])
    if options.json:
        show_json([disagreement.model_dump(mode="json") for disagreement in found])
    else:
        show(agreement_document(found, len(options.reports), everything=options.all))
    return 1 if found else 0

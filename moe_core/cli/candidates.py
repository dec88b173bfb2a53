"""``moe candidates``: the catalog, and what every candidate supports."""

from __future__ import annotations

import argparse
import sys

from moe_core.cli import options as opt
from moe_core.cli.output import show, show_json
from moe_core.explain.document import Document
from moe_core.explain.matrix import support_matrix, support_sections
from moe_core.registry import load_catalog


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--ban", action="append", default=[], metavar="NAME", help="identity, family or distribution")
    parser.add_argument("--markdown", action="store_true", help="the support matrix with every limit, as Markdown")


def run(options: argparse.Namespace) -> int:
    """List the catalog; 0."""
    catalog = load_catalog(opt.bans(options))
    if options.json:
        show_json(
            {
                "catalog": catalog.fingerprint,
                "candidates": [
                    {"distribution": entry.distribution, "candidate": entry.candidate.model_dump(mode="json")}
                    for entry in catalog
                ],
                "plugin_errors": [error.model_dump(mode="json") for error in catalog.plugin_errors],
            }
        )
    elif options.markdown:
        sys.stdout.write(support_matrix(catalog))
    else:
        show(Document("candidates", support_sections(catalog)))
    return 0

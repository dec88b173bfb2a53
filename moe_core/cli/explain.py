"""``moe explain``: what each MoE layer of a model would run, and why nothing else."""

from __future__ import annotations

import argparse
from pathlib import Path

from moe_core.cli import options as opt
from moe_core.cli.errors import bad_input
from moe_core.cli.output import say, show, show_json
from moe_core.cli.resolution import Resolution, add_resolution, resolve
from moe_core.explain import explain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add_resolution(parser)
    parser.add_argument(
        "--tokens", type=opt.numbers, metavar="N[,N]", help="most tokens per rank; several: decide for each"
    )
    parser.add_argument("--all", action="store_true", help="every reason of every candidate, and every hint")
    parser.add_argument("--why", metavar="CANDIDATE", help="only this candidate: what would make it eligible")
    parser.add_argument("--html", metavar="FILE", help="write a page, with the support matrix")
    parser.add_argument("--save", metavar="FILE", help="write the report as JSON")


def run(options: argparse.Namespace) -> int:
    """Resolve and explain; 0 when every layer has its winners."""
    tokens = options.tokens or ()
    buckets = sorted(set(tokens)) if len(tokens) > 1 else ()
    outcome = resolve(options, max_num_tokens=max(tokens, default=None), token_buckets=buckets)
    if options.save:
        _write(options.save, outcome.model.to_json() + "\n")
    if options.html:
        _write(options.html, _page(outcome, options))
    if options.why:
        return _why(outcome, options)
    if options.json:
        show_json(outcome.model.to_json())
    else:
        show(explain(outcome.model, everything=options.all, context=outcome.context))
    return 0 if outcome.model.ok else 1


def _why(outcome: Resolution, options: argparse.Namespace) -> int:
    from moe_core.explain.outcome import outcomes
    from moe_core.explain.why import Verdict, find_candidate, why
    from moe_core.explain.why_view import why_document

    with bad_input("--why"):
        candidate = find_candidate(options.why, outcome.registry.catalog)
    whys = [(o.scope, why(candidate, o.report)) for o in outcomes(outcome.model)]
    if options.json:
        show_json([{"scope": scope, **answer.model_dump(mode="json")} for scope, answer in whys])
    else:
        show(why_document(whys))
    return 1 if any(answer.of(Verdict.FAILED) for _, answer in whys) else 0


def _page(outcome: Resolution, options: argparse.Namespace) -> str:
    from moe_core.explain.as_html import as_html
    from moe_core.explain.matrix import support_sections

    document = explain(outcome.model, everything=options.all, context=outcome.context)
    return as_html(document.plus(*support_sections(outcome.registry.catalog)))


def _write(path: str, text: str) -> None:
    with bad_input("cannot write"):
        Path(path).write_text(text, encoding="utf-8")
    say(f"wrote {path}")

"""``moe plan``: what one forward would do on each rank."""

from __future__ import annotations

import argparse

from moe_core.cli import options as opt
from moe_core.cli.errors import bad_input
from moe_core.cli.output import say, show, show_json
from moe_core.cli.resolution import Resolution, add_resolution, resolve
from moe_core.contract.plan import ForwardPlan
from moe_core.explain.outcome import Outcome, outcomes
from moe_core.resolve.plan import InfeasibleWorkloadError, plan_forward


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add_resolution(parser)
    parser.add_argument(
        "--tokens",
        type=opt.numbers,
        required=True,
        metavar="N[,N]",
        help="tokens that rank 0, 1, … brings: 12,0,7; without --ep and --dp, one EP and attention-DP rank for each",
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens per rank that is declared")


def run(options: argparse.Namespace) -> int:
    """Resolve and plan; 0 when every layer has a plan."""
    _default_ranks(options)
    resolution = resolve(options, max_num_tokens=options.max_tokens)
    if not resolution.model.ok:
        return _unresolved(resolution, options)
    try:
        plans = [(outcome, _plan(outcome, options.tokens)) for outcome in outcomes(resolution.model)]
    except InfeasibleWorkloadError as error:
        say(f"no plan: {error}")
        if options.json:
            show_json({"error": str(error)})
        return 1
    if options.json:
        show_json([{"layers": o.scope, "plan": plan.model_dump(mode="json")} for o, plan in plans])
    else:
        from moe_core.explain.plan_view import plan_document

        show(plan_document([(outcome.scope, outcome.report.problem, plan) for outcome, plan in plans]))
    return 0


def _default_ranks(options: argparse.Namespace) -> None:
    if options.ep is None and options.dp is None and options.tp is None:
        options.ep = options.dp = len(options.tokens)


def _plan(outcome: Outcome, tokens: tuple[int, ...]) -> ForwardPlan:
    with bad_input("--tokens"):
        return plan_forward(outcome.report, tokens)


def _unresolved(resolution: Resolution, options: argparse.Namespace) -> int:
    from moe_core.explain import explain

    if options.json:
        show_json(resolution.model.to_json())
    else:
        show(explain(resolution.model, context=resolution.context))
    return 1

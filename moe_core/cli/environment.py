"""``moe environment``: what is known of a machine, or of a preset."""

from __future__ import annotations

import argparse

from moe_core.cli import options as opt
from moe_core.cli.errors import BadInputError, bad_input
from moe_core.cli.output import say, show, show_json
from moe_core.contract.environment import MoEEnvironment
from moe_core.explain.machine import environment_document
from moe_core.registry import load_registry, plugin_facts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    opt.add_machine(parser)
    parser.add_argument("--deep", action="store_true", help="import packages to look inside: slower, knows more")
    parser.add_argument("--save", metavar="FILE", help="write the environment, for --environment elsewhere")


def run(options: argparse.Namespace) -> int:
    """Show a machine; 0."""
    environment = _environment(options)
    if options.save:
        from moe_core.environment.saved import save

        with bad_input("cannot write"):
            save(environment, options.save)
        say(f"wrote {options.save}")
    if options.json:
        show_json(environment.to_json())
    else:
        show(environment_document(environment))
    return 0


def _environment(options: argparse.Namespace) -> MoEEnvironment:
    registry = load_registry()
    if not options.deep:
        return opt.machine(options, registry)[0]
    if options.hardware or options.environment:
        raise BadInputError("--deep looks at this machine; found another one asked for: drop --deep or the machine")
    from moe_core.environment import assume, mentioned_facts, probe

    facts, mentioned = plugin_facts(registry), mentioned_facts(registry.catalog)
    with bad_input("machine"):
        return assume(probe(deep=True, plugin_facts=facts, mentioned=mentioned), options.assume)

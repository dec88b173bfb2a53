"""Whether a plugin keeps the contract; each is examined alone, in a manager of its own."""

from __future__ import annotations

import inspect

import pluggy

from moe_core.contract.candidate import CONTRACT_VERSION, MoECandidate
from moe_core.registry import hookspecs
from moe_core.registry.declared import Declared

HOOKS = ("moe_candidate", "can_implement", "moe_tuning", "moe_facts", "moe_notes")


class PluginContractError(Exception):
    """A plugin breaks the contract; the message says how."""


def validate(plugin: object) -> tuple[MoECandidate, pluggy.PluginManager | None]:
    """The candidate of a plugin that keeps the contract, and the manager that calls its hooks.

    Raises :class:`PluginContractError`, or whatever the plugin's own declaration raised.
    """
    # Most plugins: all hooks are ours, so there is nothing to find out and nothing else to call.
    if type(plugin) is Declared:
        return _checked(plugin.candidate), None
    if isinstance(plugin, type):
        raise PluginContractError(f"{plugin.__name__} is a class; register an instance of it")
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    _no_strange_arguments(plugin)
    manager.register(plugin, "plugin")
    implemented = {name: getattr(manager.hook, name).get_hookimpls() for name in HOOKS}
    _no_strange_hooks(manager, plugin)
    for name, impls in implemented.items():
        for impl in impls:
            if impl.hookwrapper or impl.wrapper or impl.tryfirst or impl.trylast:
                raise PluginContractError(f"{name} may not be a wrapper, tryfirst or trylast: plugins are called alone")
    if not implemented["moe_candidate"]:
        raise PluginContractError("no hook moe_candidate; mark it with moe_core.registry.hookimpl")
    [candidate] = manager.hook.moe_candidate() or [None]
    return _checked(candidate), manager


def _no_strange_arguments(plugin: object) -> None:
    """pluggy finds these too, but names them in the order of a set, and reports must be equal everywhere."""
    for name in HOOKS:
        function = getattr(plugin, name, None)
        if not hasattr(function, f"{hookspecs.PROJECT}_impl"):
            continue
        known = inspect.signature(getattr(hookspecs, name)).parameters
        strange = [p for p in inspect.signature(function).parameters if p not in known]  # type: ignore[arg-type]
        if strange:
            raise PluginContractError(
                f"{name} takes {', '.join(strange)}, and the hook has {', '.join(known) or 'no arguments'}"
            )


def _no_strange_hooks(manager: pluggy.PluginManager, plugin: object) -> None:
    from difflib import get_close_matches

    unknown = [c.name for c in manager.get_hookcallers(plugin) or () if c.name not in HOOKS]
    marked = [
        name
        for name in dir(plugin)
        if name not in HOOKS and hasattr(getattr(plugin, name, None), f"{hookspecs.PROJECT}_impl")
    ]
    for name in dict.fromkeys(unknown + marked):
        close = get_close_matches(name, HOOKS, n=1)
        raise PluginContractError(
            f"unknown hook {name}; " + (f"did you mean {close[0]}?" if close else f"hooks are {', '.join(HOOKS)}")
        )


def _checked(candidate: object) -> MoECandidate:
    if not isinstance(candidate, MoECandidate):
        raise PluginContractError(f"moe_candidate returned {type(candidate).__name__}, not MoECandidate")
    if candidate.contract_version != CONTRACT_VERSION:
        raise PluginContractError(
            f"contract_version is {candidate.contract_version}, and this moe_core speaks {CONTRACT_VERSION}; "
            f"install a {'newer moe_core' if candidate.contract_version > CONTRACT_VERSION else 'newer plugin'}"
        )
    return candidate

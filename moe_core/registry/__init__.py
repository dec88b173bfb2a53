"""Plugins: hook specs, the declared plugin, and the loader that makes a catalog of what is installed."""

from moe_core.registry.ask import notes_on, plugin_facts
from moe_core.registry.declared import Declared
from moe_core.registry.hookspecs import hookimpl
from moe_core.registry.loader import Plugin, Registry, load_catalog, load_registry
from moe_core.registry.validate import PluginContractError

__all__ = [
    "Declared",
    "Plugin",
    "PluginContractError",
    "Registry",
    "hookimpl",
    "load_catalog",
    "load_registry",
    "notes_on",
    "plugin_facts",
]

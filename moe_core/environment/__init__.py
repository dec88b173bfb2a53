"""The machine: the one probe, presets of hardware, and what if. Nothing else in moe_core looks at a machine."""

from moe_core.environment.assuming import assume
from moe_core.environment.features import FEATURES
from moe_core.environment.packages import DISTRIBUTIONS, import_name
from moe_core.environment.plugin_facts import checked_facts, mentioned_facts
from moe_core.environment.presets import PRESETS, preset
from moe_core.environment.probing import probe
from moe_core.environment.process import current, override, reset
from moe_core.environment.saved import load, resolve_environment, save
from moe_core.environment.variables import FLAGS, VARIABLES, unknown_variables

__all__ = [
    "DISTRIBUTIONS",
    "FEATURES",
    "FLAGS",
    "PRESETS",
    "VARIABLES",
    "assume",
    "checked_facts",
    "current",
    "import_name",
    "load",
    "mentioned_facts",
    "override",
    "preset",
    "probe",
    "reset",
    "resolve_environment",
    "save",
    "unknown_variables",
]

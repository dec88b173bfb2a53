"""moe-hello keeps every promise of a plugin."""

from moe_core.testing import PluginConformance


class TestHello(PluginConformance):
    plugin = "moe_hello:PLUGIN"

"""First-party candidates."""

PLUGINS: list[object] = []

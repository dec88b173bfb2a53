"""The numeric format of the routed experts, layer by layer."""

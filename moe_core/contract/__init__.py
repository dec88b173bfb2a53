"""The contract: frozen values that problem, machine, plugins, resolver and report are made of."""

"""Measured times: floors, replay timing, candidates beside peers, and evidence for the resolver."""

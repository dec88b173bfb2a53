"""Settings of the whole suite."""

import os

from hypothesis import settings

# Several workers share few cores: each computes on one, or they spend their time waiting for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Triton decides at its import, which is later than here, whether kernels are compiled or interpreted.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

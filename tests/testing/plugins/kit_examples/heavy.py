"""A declaration that loads what only its kernels need."""

import ctypes

import numpy  # noqa: F401
from kit_examples.honest import Plugin

LIBRARY = ctypes.CDLL("libc.so.6")
PLUGIN = Plugin("heavy")

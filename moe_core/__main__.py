"""``python -m moe_core``: the command line."""

from __future__ import annotations

import sys

from moe_core.cli import main

sys.exit(main())

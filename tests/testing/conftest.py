"""The example plugins of these tests are importable like installed ones, here and in the processes of the kit."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).with_name("plugins")))

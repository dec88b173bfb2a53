"""The example plugins of these tests are importable like installed ones, here and in the processes of the kit."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).with_name("plugins")))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    # The matrices are tiny: threads would only wait for each other.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

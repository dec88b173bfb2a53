"""Small layers on the processor, and backends that behave as a test needs."""

import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from moe_core.contract.catalog import Catalog, CatalogEntry
from moe_core.contract.deployment import MoEDeployment
from moe_core.environment import preset
from moe_core.measure.floor import Ceilings
from moe_core.measure.shapes import Shape
from moe_core.measure.site import Site
from moe_core.measure.timing import Budget
from moe_core.registry import load_catalog
from moe_core.testing.problems import small_problem

sys.path.append(str(Path(__file__).with_name("plugins")))
from measured_examples.declared import candidate

TRANSFORMERS = version("transformers") if find_spec("transformers") else "0"
BRIEF = Budget(0.002, least=2, most=3)
CEILINGS = Ceilings(source="made up", read_gb_s=10, bf16_tflop_s=1)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def shape():
    return Shape(name="small", problem=small_problem())


@pytest.fixture
def ceilings():
    return CEILINGS


@pytest.fixture
def site_of():
    """A site on the processor, with backends of the examples beside the installed ones."""

    def make(*names, **fields):
        catalog = Catalog([*load_catalog().entries, *(CatalogEntry(candidate(name)) for name in names)])
        deployment = MoEDeployment(environment=preset("cpu").with_packages(transformers=TRANSFORMERS))
        defaults = {"catalog": catalog, "deployment": deployment, "device": torch.device("cpu"), "budget": BRIEF}
        return Site(**defaults | fields)

    return make

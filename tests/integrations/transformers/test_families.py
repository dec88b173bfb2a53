"""Every experts class of the installed transformers computes here what it computes by itself."""

import ast
import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", "5.7", reason="needs transformers 5.7 or newer")

from transformers import PreTrainedConfig  # noqa: E402 - it may be missing

from moe_core.contract.request import MoERequest  # noqa: E402
from moe_core.integrations.transformers import register, reports  # noqa: E402
from moe_core.testing.numerics import assert_close  # noqa: E402

E, H, I, T, K = 8, 32, 16, 11, 3  # noqa: E741 - shape letters
TOLERANCE = 1e-6
SIZES = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), E),
    **dict.fromkeys(("hidden_size", "moe_hidden_size"), H),
    **dict.fromkeys(("moe_intermediate_size", "intermediate_size"), I),
}
REFUSED: dict[str, str] = {}
"""Classes that moe_core does not run, and the reason that it gives: none of those that transformers has today."""
IMPLEMENTATIONS = {"moe_core": MoERequest(), "moe_core_vanilla": MoERequest(backend="VANILLA")}
"""What is chosen by itself, and the reference loop."""


def families():
    """Model folder and class of everything that has the experts interface, found in the source."""
    for path in sorted(Path(find_spec("transformers").origin).parent.glob("models/*/modeling_*.py")):
        source = path.read_text()
        if "@use_experts_implementation" in source:
            for node in ast.parse(source).body:
                if isinstance(node, ast.ClassDef) and "use_experts_implementation" in map(
                    decorator, node.decorator_list
                ):
                    yield path.parent.name, node.name


def decorator(node):
    return ast.unparse(node).partition("(")[0]


FAMILIES = list(families())


class Small:
    """A model's own default config, but for its sizes."""

    _experts_implementation = "eager"

    def __init__(self, config):
        self._config = config

    def __getattr__(self, name):
        return SIZES[name] if name in SIZES else getattr(self._config, name)


def experts(folder, name):
    """A small instance with random parameters, made by the first config of the model that suits it."""
    cls = getattr(importlib.import_module(f"transformers.models.{folder}.modeling_{folder}"), name)
    module = next(made for config in configs(cls, folder) if (made := attempt(cls, config)) is not None)
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module


def configs(cls, folder):
    annotated = inspect.signature(cls.__init__).parameters["config"].annotation
    home = vars(importlib.import_module(f"transformers.models.{folder}.configuration_{folder}"))
    if inspect.isclass(annotated) and annotated.__name__ in home:
        yield Small(annotated())
    for value in home.values():
        if inspect.isclass(value) and issubclass(value, PreTrainedConfig) and value is not PreTrainedConfig:
            yield Small(value())


def attempt(cls, config):
    try:
        return cls(config)
    except AttributeError:  # the config of another part of the model
        return None


def batch():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(T, H, generator=generator) * 3
    ids = torch.rand(T, E, generator=generator).argsort(dim=-1)[:, :K]
    return x, ids, torch.rand(T, K, generator=generator)


def run(module, implementation, *inputs):
    module.config._experts_implementation = implementation
    return module(*inputs)


@pytest.fixture(autouse=True)
def _registered():
    for name, request in IMPLEMENTATIONS.items():
        register(name, request=request)


@pytest.mark.parametrize(("folder", "name"), FAMILIES, ids=[name for _, name in FAMILIES])
@torch.no_grad()
def test_equals_its_own_forward(folder, name):
    module = experts(folder, name)
    x, ids, weights = batch()
    if name in REFUSED:
        with pytest.raises(NotImplementedError, match=REFUSED[name]):
            run(module, "moe_core", x, ids, weights)
        return
    expected = run(module, "eager", x, ids, weights)
    # Ids of other ranks' experts: as if the pair had no weight. Not every forward of transformers takes them.
    foreign = torch.rand(T, K, generator=torch.Generator().manual_seed(2)) < 0.3
    of_ours = run(module, "eager", x, ids, weights.masked_fill(foreign, 0.0))
    for implementation in IMPLEMENTATIONS:
        assert_close(run(module, implementation, x, ids, weights), expected, TOLERANCE)
        for sentinel in (E, E + 5, -1):
            actual = run(module, implementation, x, ids.masked_fill(foreign, sentinel), weights)
            assert_close(actual, of_ours, TOLERANCE)
        assert run(module, implementation, x[:0], ids[:0], weights[:0]).shape == (0, H)
    (report,) = reports(module).values()
    assert report.winner().family == "VANILLA"


def test_the_families_are_all_found_and_ask_for_everything():
    decorated = [
        name
        for path in Path(transformers.__file__).parent.glob("models/*/modeling_*.py")
        for name in re.findall(r"^@use_experts_implementation.*\nclass (\w+)", path.read_text(), re.MULTILINE)
    ]
    assert sorted(decorated) == sorted(name for _, name in FAMILIES)
    assert {"MixtralExperts", "GptOssExperts", "NemotronHExperts", "Gemma4TextExperts"} <= set(decorated)
    assert REFUSED.keys() <= set(decorated)

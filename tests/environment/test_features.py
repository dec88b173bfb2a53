"""Features: found by importing, each alone, with warnings and failures kept in."""

import sys

import pytest

from moe_core.environment.features import FEATURES, features_of
from moe_core.environment.packages import DISTRIBUTIONS

ENTRY = "def trtllm_fp8_block_scale_routed_moe(x{}): ...\n"
ENUMS = "class Fp8QuantizationType: MxFp8 = 2\nclass ActivationType: {} = 6\n"


@pytest.fixture
def module(monkeypatch, tmp_path):
    """Makes importable modules: ``module("flashinfer.fused_moe", "code")``."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(name, code=""):
        top = name.partition(".")[0]
        for loaded in [n for n in sys.modules if n.partition(".")[0] == top]:
            monkeypatch.delitem(sys.modules, loaded)
        folder = tmp_path
        for part in name.split("."):
            folder = folder / part
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / "__init__.py").write_text(code)
        made.append(top)

    yield make
    for name in [n for n in sys.modules if n.partition(".")[0] in made]:
        del sys.modules[name]


def present(feature):
    found = {f.name: f.present for f in features_of([feature.partition(".")[0]])}
    return found[feature]


@pytest.mark.parametrize(
    ("feature", "where", "code", "expected"),
    [
        ("flashinfer.bf16_moe", "flashinfer.fused_moe", "trtllm_bf16_moe = trtllm_bf16_routed_moe = print", True),
        ("flashinfer.bf16_moe", "flashinfer.fused_moe", "trtllm_bf16_moe = print", False),
        ("flashinfer.bf16_moe", "flashinfer", "", False),
        ("deep_gemm.mega_moe", "deep_gemm", "fp8_fp4_mega_moe = get_symm_buffer_for_mega_moe = print", True),
        ("deep_gemm.mega_moe", "deep_gemm", "fp8_mega_moe = print", False),
        ("nvidia_cutlass_dsl.rubin", "cutlass.utils.rubin_helpers", "", True),
        ("nvidia_cutlass_dsl.rubin", "cutlass.utils", "", False),
    ],
)
def test_a_feature_is_its_symbols(module, caplog, feature, where, code, expected):
    module(where, code)
    assert present(feature) is expected
    assert f"feature {feature}" not in caplog.text, "an absent symbol is an answer, not a failure"


@pytest.mark.parametrize(
    ("parameters", "kind", "expected"),
    [
        (", fp8_quantization_type, activation_type", "Relu2", True),
        (", fp8_quantization_type", "Relu2", False),
        (", fp8_quantization_type, activation_type", "Relu", False),
    ],
)
def test_mxfp8_needs_both_arguments_and_both_members(module, parameters, kind, expected):
    module("flashinfer.fused_moe", ENTRY.format(parameters) + ENUMS.format(kind))
    assert present("flashinfer.mxfp8_moe") is expected


@pytest.mark.parametrize(
    "code", ["raise RuntimeError('no libcuda\\nat all')", "import sys; sys.exit('no libcuda')", "import no_such_module"]
)
def test_a_package_that_does_not_import_has_no_features_and_says_why(module, caplog, code):
    module("deep_gemm", code)
    assert present("deep_gemm.mega_moe") is False
    assert "looking at feature deep_gemm.mega_moe failed" in caplog.text
    assert "no libcuda" in caplog.text or "no_such_module" in caplog.text
    assert "at all" not in caplog.text, "one line is enough"


@pytest.mark.parametrize("enabled", [True, False])
def test_locality_domains_are_where_tensorrt_llm_says_so(module, enabled):
    module("tensorrt_llm._torch.locality_domain_utils", f"def is_locality_domain_enabled(): return {enabled}")
    assert present("tensorrt_llm.locality_domain") is enabled


def test_the_megamoe_op_is_not_registered_without_tensorrt_llm(module, caplog):
    assert present("nvidia_cutlass_dsl.megamoe_op") is False
    assert caplog.text == ""
    module("tensorrt_llm._torch", "import torch; lib = torch.library.Library('trtllm', 'FRAGMENT')")
    assert present("nvidia_cutlass_dsl.megamoe_op") is False


def test_the_megamoe_op_is_registered_by_importing_tensorrt_llm(module):
    define = "lib.define('cute_dsl_megamoe_nvfp4_blackwell(Tensor x) -> Tensor')"
    module("tensorrt_llm._torch", f"import torch; lib = torch.library.Library('trtllm', 'FRAGMENT'); {define}")
    assert present("nvidia_cutlass_dsl.megamoe_op") is True


def test_a_deprecation_inside_a_package_is_no_failure(module):
    warn = "import warnings; warnings.warn('old', DeprecationWarning)\n"
    module("deep_gemm", warn + "fp8_fp4_mega_moe = get_symm_buffer_for_mega_moe = print")
    assert present("deep_gemm.mega_moe") is True


def test_this_torch_has_what_its_own_attributes_say():
    import torch

    found = {f.name: f.present for f in features_of(["torch"])}
    assert found == {
        "torch.grouped_mm": hasattr(torch.nn.functional, "grouped_mm") or hasattr(torch, "_grouped_mm"),
        "torch.scaled_grouped_mm": hasattr(torch.nn.functional, "scaled_grouped_mm")
        or hasattr(torch, "_scaled_grouped_mm"),
        "torch.symmetric_memory": hasattr(torch.distributed, "_symmetric_memory"),
    }


def test_features_belong_to_packages_of_the_table_and_are_asked_of_installed_ones_only():
    assert {name.partition(".")[0] for name in FEATURES} <= set(DISTRIBUTIONS)
    assert features_of([]) == ()

"""What if: packages, features and flags on top of an environment."""

import pytest

from moe_core.environment import assume, preset


def test_packages_features_and_flags():
    there = assume(
        preset("b200"),
        ["flashinfer-python==0.7.2.post1", "feature:flashinfer.bf16_moe", "flag:TRTLLM_FORCE_COMM_METHOD=DEEPEP"],
    )
    assert there.package_version("flashinfer") == "0.7.2.post1"
    assert there.package_version("torch") == "2.11.0"
    assert [(f.name, f.present) for f in there.features] == [("flashinfer.bf16_moe", True)]
    assert [(f.name, f.value) for f in there.flags] == [("TRTLLM_FORCE_COMM_METHOD", "DEEPEP")]
    assert there.evolve(packages=preset("b200").packages, features=(), flags=()) == preset("b200")


def test_order_does_not_matter_between_things_and_the_last_word_counts_on_one():
    one = assume(preset("b200"), ["feature:deep-gemm.mega_moe=no", "deep-gemm==2.6.1", "torch==2.15.0", "flag:A=1"])
    other = assume(preset("b200"), ["torch==2.9", "flag:A=1", "torch==2.15.0", "deep_gemm==2.6.1"])
    assert one == assume(other, ["feature:deep_gemm.mega_moe", "feature:deep_gemm.mega_moe=no"])
    assert [f.present for f in one.features] == [False]


def test_nothing_assumed_is_the_same_environment():
    assert assume(preset("h200"), []) == preset("h200")


def test_unknown_packages_cannot_become_absent_by_assuming_one():
    unknown = preset("h200").evolve(packages=None)
    assert assume(unknown, []) == unknown
    with pytest.raises(ValueError, match="installed packages are unknown"):
        assume(unknown, ["vllm==0.33"])


def test_a_flags_value_may_be_empty_and_hold_anything():
    there = assume(preset("h200"), ["flag:A=", "flag:B=x=y:z"])
    assert [(f.name, f.value) for f in there.flags] == [("A", ""), ("B", "x=y:z")]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("flashinfer", "at which version?"),
        ("flashinfer==", "at which version?"),
        ("flashinfer>=0.7", "at one version"),
        ("==1", "at one version"),
        ("", "at one version"),
        ("flashinfer==newest", "'newest' is no version"),
        ("feature:bf16_moe", "named by its package and itself"),
        ("feature:torch.grouped_mm=maybe", "(=yes) or not (=no)"),
        ("feature:torch.grouped_mm=", "(=yes) or not (=no)"),
        ("flag:TRTLLM_FORCE_COMM_METHOD", "a name and a value"),
        ("flag:=1", "a name and a value"),
        ("packages:flashinfer==1", "no 'packages' to assume"),
        ("feature:flashinfer.bf16_moe", "flashinfer is absent; try: assume flashinfer==VERSION"),
    ],
)
def test_what_cannot_be_assumed_says_why(spec, says):
    with pytest.raises(ValueError, match="cannot assume") as caught:
        assume(preset("b200"), [spec])
    assert says in str(caught.value)

"""Packages: import names for distributions, impostors told from the real ones, torch's CUDA read without importing."""

import pytest

from moe_core.contract.facts import ABSENT
from moe_core.environment.packages import DISTRIBUTIONS, cuda_version_of_torch, import_name, installed_packages


def version_of(name, *more):
    return {p.name: p.version for p in installed_packages(more)}.get(name)


@pytest.mark.parametrize(
    ("distribution_name", "name"),
    [
        ("flashinfer-python", "flashinfer"),
        ("sonic-moe", "sonicmoe"),
        ("quack-kernels", "quack"),
        ("nvidia-cutlass-dsl", "nvidia_cutlass_dsl"),
        ("tensorrt_llm", "tensorrt_llm"),
        ("nvidia-nccl-cu13", "nvidia_nccl"),
        ("nccl4py", "nccl"),
        ("nccl-extensions", "nccl_ep"),
    ],
)
def test_a_distribution_counts_under_its_import_name(distribution, distribution_name, name):
    distribution(distribution_name, "7.8.9")
    assert version_of(name) == "7.8.9"
    assert import_name(distribution_name) == name


@pytest.mark.parametrize(
    ("name", "impostor", "real"),
    [
        ("deep_gemm", "1.0.0", "1.0.0+4499c4c"),
        ("deep_gemm", "1.0.0", "2.6.1"),
        ("deep_ep", "1.0.0", "1.2.1+fd27f9b"),
        ("triton_kernels", "0.1.0", "1.0.0"),
    ],
)
def test_another_project_of_the_same_name_counts_as_absent(distribution, caplog, name, impostor, real):
    site = distribution(name.replace("_", "-"), impostor)
    assert version_of(name) is None
    assert f"{name} {impostor} is another project" in caplog.text
    (info,) = site.iterdir()
    info.rename(site / f"{name}-{real}.dist-info")
    metadata = site / f"{name}-{real}.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace(f"Version: {impostor}", f"Version: {real}"))
    assert version_of(name) == real


def test_a_name_that_is_quacks_is_not_quack(distribution):
    distribution("quack", "0.1.1")
    assert version_of("quack") != "0.1.1"


def test_a_package_outside_the_table_is_looked_at_when_asked(distribution):
    distribution("their-kernels", "3.1")
    assert version_of("their_kernels") is None
    assert version_of("their_kernels", "their_kernels") == "3.1"


def test_a_first_choice_beats_a_second(distribution):
    for name in DISTRIBUTIONS["nvidia_nccl"]:
        distribution(name, f"2.{len(name)}.{name[-1]}")
    assert version_of("nvidia_nccl") == "2.16.3"


def test_broken_metadata_counts_as_absent(distribution, caplog):
    site = distribution("flashinfer-python", "0.7.2")
    (info,) = site.iterdir()
    (info / "METADATA").write_bytes(b"\xff\xfe\x00")
    assert version_of("flashinfer") is None
    assert "package flashinfer" in caplog.text


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__version__ = '2.11.0'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "13.0"),
        ("__version__ = '2.6.0+cu124'\ncuda = '12.4'\n", "12.4"),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip = None\n", ABSENT),
        ("__version__ = '2.11.0+rocm7.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '7.0.51831'\n", ABSENT),
        ("__version__ = '2.11.0'\n", None),
        (None, None),
    ],
)
def test_the_cuda_version_of_torch(distribution, text, version):
    site = distribution("torch", "2.11.0")
    (site / "torch").mkdir()
    if text is not None:
        (site / "torch" / "version.py").write_text(text)
    assert cuda_version_of_torch() == version


def test_the_cuda_version_of_this_torch():
    import torch

    assert cuda_version_of_torch() == (torch.version.cuda or ABSENT)

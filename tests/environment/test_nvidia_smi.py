"""nvidia-smi: the same facts from the command, where it has them."""

import subprocess

import pytest

from moe_core.contract.vocabulary import LinkKind
from moe_core.environment import nvidia_smi

H200 = "NVIDIA H200, 9.0, 143771, 580.159.04, Disabled"
GB10 = "NVIDIA GB10, 12.1, [N/A], 580.95.05, [N/A]"
SLICED = "NVIDIA H200, 9.0, 143771, 580.159.04, Enabled"
HEADING = "\t\\033[4mGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\\033[0m"
LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks"


@pytest.fixture
def smi(command):
    """Installs an ``nvidia-smi`` that prints these rows, and this matrix."""

    def install(*rows, matrix=()):
        topology = "\n".join([HEADING, *matrix, LEGEND])
        listing = "\n".join(rows)
        command("nvidia-smi", f"case $1 in topo) printf '{topology}\\n';; *) printf '{listing}\\n';; esac")

    return install


def test_an_h200(smi):
    smi(H200)
    assert dict(nvidia_smi.read()) == {
        "name": "NVIDIA H200",
        "device": "cuda",
        "device_name": "NVIDIA H200",
        "sm": 90,
        "device_memory": 143_771 * 1024 * 1024,
        "shared_memory_per_block": 232_448,
        "devices_per_node": 1,
        "link": LinkKind.NONE,
        "driver_version": "580.159.04",
    }


@pytest.mark.parametrize("row", [GB10, SLICED])
def test_memory_that_is_shared_or_sliced_is_unknown(smi, row):
    smi(row)
    assert "device_memory" not in nvidia_smi.read()


def test_a_two_digit_compute_capability(smi):
    smi(GB10)
    assert nvidia_smi.read()["sm"] == 121


@pytest.mark.parametrize(
    ("matrix", "link"),
    [
        (("GPU0\t X \tNV18\tNV18\t0-31", "GPU1\tNV18\t X \tNV18\t0-31", "GPU2\tNV18\tNV18\t X \t0-31"), "nvlink"),
        (("GPU0\t X \tNV4\tSYS\t0-31", "GPU1\tNV4\t X \tNODE\t0-31", "GPU2\tSYS\tNODE\t X \t0-31"), "nvlink_split"),
        (("GPU0\t X \tPIX\tSYS\t0-31", "GPU1\tPIX\t X \tNODE\t0-31", "GPU2\tSYS\tNODE\t X \t0-31"), "pcie"),
        (("GPU0\t X \tNV18", "GPU1\tNV18\t X "), None),
    ],
)
def test_the_link_is_read_from_the_matrix(smi, matrix, link):
    smi(H200, H200, H200, matrix=matrix)
    assert nvidia_smi.read().get("link") == link


def test_no_command_and_no_gpu_say_nothing(bare, smi):
    assert nvidia_smi.read() == {}
    smi("No devices were found")
    assert nvidia_smi.read() == {}


def test_a_failing_command_raises(command):
    command("nvidia-smi", "echo no field compute_cap; exit 2")
    with pytest.raises(subprocess.CalledProcessError):
        nvidia_smi.read()

"""A machine of our own making: nothing of the real one shows through."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from moe_core.environment import FLAGS, probing, reset


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without GPUs, driver tools, selection flags or commands on its path."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(probing, "DEVICES", tmp_path / "dev")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("CC", "CUDA_VISIBLE_DEVICES", *FLAGS):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "dev").mkdir()
    reset()
    yield tmp_path
    reset()


@pytest.fixture
def command(bare):
    """Puts a shell script on the path: ``command(name, script)``."""

    def install(name: str, script: str = "") -> None:
        path = bare / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return install


@pytest.fixture
def distribution(monkeypatch, tmp_path):
    """Installs a distribution's metadata: ``distribution(name, version)``."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(name: str, version: str) -> Path:
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return site

    return install


class FakeNvml:
    """The part of ``pynvml`` that is asked, over a list of GPUs given as namespaces; a missing answer raises."""

    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus, bridged=None, driver="580.159.04"):
        self.gpus, self.bridged, self.driver, self.running = gpus, bridged, driver, 0

    def nvmlInit(self):
        self.running += 1

    def nvmlShutdown(self):
        self.running -= 1

    def nvmlSystemGetDriverVersion(self):
        return self.driver

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def _answer(self, handle, field):
        value = getattr(self.gpus[handle], field, None)
        if value is None:
            raise self.NVMLError("Not Supported")
        return value

    def nvmlDeviceGetName(self, handle):
        return self._answer(handle, "name")

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return self._answer(handle, "capability")

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=self._answer(handle, "memory"))

    def nvmlDeviceGetNumGpuCores(self, handle):
        return self._answer(handle, "cores")

    def nvmlDeviceGetMigMode(self, handle):
        return self._answer(handle, "mig")

    def nvmlDeviceGetP2PStatus(self, one, other, capability):
        assert capability == self.NVML_P2P_CAPS_INDEX_NVLINK
        if self.bridged is None:
            raise self.NVMLError("Not Supported")
        return self.NVML_P2P_STATUS_OK if (one, other) in self.bridged else 3


@pytest.fixture
def h200():
    """Makes what NVML says of an H200: ``h200(memory=None)``, where ``None`` is no answer."""
    said = {"name": "NVIDIA H200", "capability": (9, 0), "memory": 150_754_820_096, "cores": 16_896, "mig": [0, 0]}
    return lambda **changes: SimpleNamespace(**{**said, **changes})


@pytest.fixture
def nvml(bare, monkeypatch):
    """Installs a fake ``pynvml``: ``nvml(h200(), h200(), bridged={(0, 1)})``."""

    def install(*gpus, **about):
        fake = FakeNvml(*gpus, **about)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return install

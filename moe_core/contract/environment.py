"""Frozen facts of a machine. Only :mod:`moe_core.environment` makes one by looking."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moe_core.contract.base import SCHEMA_VERSION, Frozen
from moe_core.contract.vocabulary import Device, LinkKind

Scalar = bool | int | float | str


class Package(Frozen):
    """An installed distribution; `name` is normalized (lower case, ``-`` to ``_``)."""

    name: str
    version: str


class Feature(Frozen):
    """Whether a symbol or ability inside a package was found: ``<package>.<feature>``."""

    name: str
    present: bool


class Flag(Frozen):
    """An environment variable that takes part in selection, as it was set."""

    name: str
    value: str


class PluginFact(Frozen):
    """A fact that a plugin probed, under the plugin's own prefix: ``<prefix>.<fact>``."""

    name: str
    value: Scalar


class MoEEnvironment(Frozen):
    """One machine's facts, equal on every rank of a homogeneous deployment.

    ``None`` is unknown. A package that `packages` does not list is known to be absent; a feature that `features`
    does not list is unknown while its package is installed. Sizes are bytes.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    name: str | None = None
    """Label for people: a preset's name or the device's; part of the fingerprint."""
    device: Device | None = None
    device_name: str | None = None
    sm: Annotated[int, Field(ge=0)] | None = None
    """Compute capability times ten (90 is Hopper); 0 without CUDA."""
    num_sms: Annotated[int, Field(ge=0)] | None = None
    device_memory: Annotated[int, Field(ge=0)] | None = None
    shared_memory_per_block: Annotated[int, Field(ge=0)] | None = None
    """The opt-in limit of dynamic shared memory of one block."""
    devices_per_node: Annotated[int, Field(ge=0)] | None = None
    link: LinkKind | None = None
    cuda_version: str | None = None
    """CUDA version that torch was built for, ``major.minor``; ``absent`` when for none."""
    driver_version: str | None = None
    python_version: str | None = None
    can_jit: bool | None = None
    """Whether kernels may be compiled at run time (a compiler and a writable cache)."""
    packages: tuple[Package, ...] | None = ()
    features: tuple[Feature, ...] = ()
    flags: tuple[Flag, ...] = ()
    facts: tuple[PluginFact, ...] = ()

    @model_validator(mode="after")
    def _sorted_and_unique(self) -> Self:
        errors: list[str] = []
        for field in ("packages", "features", "flags", "facts"):
            entries = getattr(self, field)
            if entries is None:
                continue
            names = [entry.name for entry in entries]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                errors.append(f"{field} lists twice: {', '.join(twice)}")
            self.__dict__[field] = tuple(sorted(entries, key=lambda entry: entry.name))
        if self.device is Device.CPU:
            if self.sm:
                errors.append(f"device is cpu, but sm is {self.sm}; without CUDA sm is 0")
            self.__dict__["sm"] = 0
        if self.device is Device.CUDA and self.sm == 0:
            errors.append("device is cuda, but sm is 0; give the compute capability, or leave it unknown")
        if errors:
            raise ValueError("; ".join(errors))
        return self

    def package_version(self, name: str) -> str | None:
        """Version of an installed package, else ``None``."""
        wanted = normalize_package(name)
        return next((p.version for p in self.packages or () if p.name == wanted), None)

    def with_packages(self, **versions: str) -> Self:
        """A copy in which the named packages are installed at the given versions."""
        kept = {p.name: p for p in self.packages or ()}
        added = {normalize_package(n): Package(name=normalize_package(n), version=v) for n, v in versions.items()}
        return self.evolve(packages=tuple({**kept, **added}.values()))


def normalize_package(name: str) -> str:
    """The key of a package: lower case, with ``-`` and ``.`` as ``_``."""
    return name.lower().replace("-", "_").replace(".", "_")

"""What if: an environment with packages, features and flags that are not there yet."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

from moe_core.contract.environment import Feature, Flag, MoEEnvironment, Package
from moe_core.environment.packages import import_name

Entry = TypeVar("Entry", bound=Package | Feature | Flag)

SYNTAX = "NAME==VERSION, feature:PACKAGE.FEATURE, feature:PACKAGE.FEATURE=no, or flag:VARIABLE=VALUE"


def assume(environment: MoEEnvironment, specs: Iterable[str]) -> MoEEnvironment:
    """`environment`, as if `specs` held there. Each is one of

    - ``flashinfer==0.7.2``: the package is installed at this version (``flashinfer-python`` names the same one);
    - ``feature:flashinfer.bf16_moe``: the installed package has the feature; with ``=no``, it lacks it;
    - ``flag:TRTLLM_FORCE_COMM_METHOD=DEEPEP``: the environment variable is set so.

    A later one beats an earlier one on the same thing. Raises ``ValueError`` for anything else, for a feature of a
    package that is absent, and where packages are unknown: assuming one would make all others absent.
    """
    assumed = [_parse(spec.strip()) for spec in specs]
    if not assumed:
        return environment
    if environment.packages is None:
        raise ValueError("nothing can be assumed where installed packages are unknown; try: list them (none: [])")
    packages = _merged(Package, environment.packages, assumed)
    for feature in assumed:
        owner = feature.name.partition(".")[0]
        if isinstance(feature, Feature) and owner not in {p.name for p in packages}:
            raise ValueError(f"cannot assume {feature.name}: {owner} is absent; try: assume {owner}==VERSION as well")
    return environment.evolve(
        packages=packages,
        features=_merged(Feature, environment.features, assumed),
        flags=_merged(Flag, environment.flags, assumed),
    )


def _merged(kind: type[Entry], there: tuple[Entry, ...], assumed: Iterable[object]) -> tuple[Entry, ...]:
    entries = {e.name: e for e in (*there, *(a for a in assumed if isinstance(a, kind)))}
    return tuple(entries.values())


def _parse(spec: str) -> Package | Feature | Flag:
    family, colon, rest = spec.partition(":")
    if not colon:
        return _package(spec)
    if family == "feature":
        return _feature(spec, rest)
    if family == "flag":
        return _flag(spec, rest)
    raise _error(spec, f"there is no {family!r} to assume")


def _package(spec: str) -> Package:
    from packaging.version import InvalidVersion, Version

    name, exactly, version = (part.strip() for part in spec.partition("=="))
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise _error(spec, "a package is assumed at one version")
    if not exactly or not version:
        raise _error(spec, f"at which version? what candidates need depends on it; try: {name}==VERSION")
    try:
        Version(version)
    except InvalidVersion:
        raise _error(spec, f"{version!r} is no version") from None
    return Package(name=import_name(name), version=version)


def _feature(spec: str, rest: str) -> Feature:
    name, equals, present = rest.partition("=")
    package, _, feature = name.partition(".")
    if not package or not feature or (equals and present not in ("yes", "no")):
        raise _error(spec, "a feature is named by its package and itself, and is there (=yes) or not (=no)")
    return Feature(name=f"{import_name(package)}.{feature}", present=present != "no")


def _flag(spec: str, rest: str) -> Flag:
    name, equals, value = rest.partition("=")
    if not name or not equals:
        raise _error(spec, "a flag has a name and a value")
    return Flag(name=name, value=value)


def _error(spec: str, found: str) -> ValueError:
    return ValueError(f"cannot assume {spec!r}: {found}. It takes {SYNTAX}")

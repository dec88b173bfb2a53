"""Arrows point one way: a module imports only what is left of it in the list, and nobody imports a plugin."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ORDER = (
    "contract", "resolve", "registry", "environment", "ingest", "explain", "activation", "routing", "quantization",
    "weights", "fused_weights", "reference", "checkpoint", "permutation", "grouped", "execution", "communication",
    "schedule", "balance", "dwdp", "bind", "compiled", "assembly", "shortcut", "layer",
    "integrations", "testing", "measure", "cli",
)  # fmt: skip
PIECES = sorted(p.stem for p in (ROOT / "moe_core").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists())


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(piece):
    package = ROOT / "moe_core" / piece
    return sorted(package.rglob("*.py")) if package.is_dir() else [package.with_suffix(".py")]


def test_every_piece_has_its_place():
    assert set(PIECES) - {"__init__", "__main__"} <= set(ORDER)


@pytest.mark.parametrize("piece", [p for p in ORDER if p in PIECES])
def test_arrows_point_one_way(piece):
    allowed = set(ORDER[: ORDER.index(piece) + 1])
    bad = [
        f"{path.relative_to(ROOT)} imports {name} from a layer above {piece}"
        for path in files_of(piece)
        for name in imports(path)
        if name.startswith("moe_core.") and name.split(".")[1] in ORDER and name.split(".")[1] not in allowed
    ]
    assert not bad, "\n".join(bad)


def test_moe_core_imports_no_plugin():
    bad = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "moe_core").rglob("*.py")
        for name in imports(path)
        if name.split(".")[0] in ("moe_plugins", "contrib", "tests")
    ]
    assert not bad, "\n".join(bad)


def test_plugins_import_moe_core_and_never_each_other():
    bad = []
    for path in sorted((ROOT / "moe_plugins").rglob("*.py")):
        own = path.relative_to(ROOT / "moe_plugins").parts[0].removesuffix(".py")
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "moe_plugins" and len(parts) > 1 and parts[1] != own and own != "__init__":
                bad.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not bad, "\n".join(bad)


def test_contrib_imports_no_first_party_plugin():
    bad = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "contrib").rglob("*.py"))
        for name in imports(path)
        if name.split(".")[0] == "moe_plugins"
    ]
    assert not bad, "\n".join(bad)

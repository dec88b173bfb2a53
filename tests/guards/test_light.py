"""Light until bound: selection, explanation and every declaration import neither torch nor triton nor numpy."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "numpy", "transformers")
LIGHT = {
    "contract": "import moe_core.contract.report, moe_core.contract.model_report, moe_core.contract.plan",
    "resolve": "import moe_core.resolve",
    "registry": "import moe_core.registry",
    "environment": "import moe_core.environment as e; e.preset('h200'); e.probe()",
    "ingest": "import moe_core.ingest",
    "explain": "import moe_core.explain",
    "cli": "import moe_core.cli",
    "floors, results and their pages": "import moe_core.measure.page, moe_core.measure.tunable",
    "options of bench and tune": "from moe_core.cli.parser import parse; parse(['bench']); parse(['tune'])",
    "every first-party declaration": "from moe_core.registry import load_catalog; assert len(load_catalog()) > 40",
    "moe explain": "from moe_core.cli import main; "
    "assert main(['explain', 'tests/data/configs/deepseek-ai__DeepSeek-V3', '--hardware', 'h200', '--json']) == 1; "
    "assert main(['explain', 'tests/data/configs/deepseek-ai__DeepSeek-V3', '--hardware', 'h200', '--ep', '8']) == 0",
}


@pytest.mark.parametrize("code", LIGHT.values(), ids=LIGHT)
def test_light(code, pytestconfig):
    program = f"{code}\nimport sys\nprint('heavy:', sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=pytestconfig.rootpath
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"

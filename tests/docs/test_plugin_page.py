"""The plugin of docs/how-to/write-a-plugin.md, typed as the page says, passes the suite that the page recommends."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-plugin.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_plugin_conforms(tmp_path):
    blocks = BLOCK.findall(PAGE.read_text())
    named = {m[1]: block for block in blocks if (m := re.match(r"# (\S+\.py)\n", block))}
    suite = next(block for block in blocks if "PluginConformance" in block)
    for name, text in {**named, "test_acme.py": suite}.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_acme.py"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout

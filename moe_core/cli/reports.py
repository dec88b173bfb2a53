"""Saved reports, of a model or of a single layer."""

from __future__ import annotations

import json
from pathlib import Path

from moe_core.cli.errors import bad_input
from moe_core.contract.model_report import MoEModelReport
from moe_core.contract.report import MoEResolutionReport


def read_report(path: str) -> MoEModelReport | MoEResolutionReport:
    """The report that ``moe explain --save``, or ``to_json`` of either report, wrote."""
    with bad_input(f"report {path}"):
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text)
        if not isinstance(content, dict) or not {"layers", "decisions"} & content.keys():
            raise ValueError("found no report, needed the JSON of one; try: moe explain CONFIG --save FILE")
        return MoEModelReport.from_json(text) if "layers" in content else MoEResolutionReport.from_json(text)

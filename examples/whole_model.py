"""Resolve every MoE layer of a model, save the report, load it elsewhere, and see what another machine changes."""

from pathlib import Path
from tempfile import TemporaryDirectory

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.model_report import MoEModelReport
from moe_core.environment import preset
from moe_core.explain.diff import differences
from moe_core.ingest import ingest
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_model

CONFIG = Path(__file__).parents[1] / "tests" / "data" / "configs" / "Qwen__Qwen3-235B-A22B"


def resolve_for(hardware):
    model = ingest(CONFIG)
    deployment = MoEDeployment(environment=preset(hardware), ep_size=8, dp_size=8, max_num_tokens=1024)
    return resolve_model(model.groups, deployment, candidates=load_catalog(), model=model.name)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        saved = Path(folder) / "h200.json"
        saved.write_text(resolve_for("h200").to_json())
        before = MoEModelReport.from_json(saved.read_text())
    assert before == resolve_for("h200")
    for backend, exchange, num_layers in before.winners:
        print(f"{num_layers} layers run {backend} with {exchange}")
    after = resolve_for("h100")
    for difference in differences(before, after)[:5]:
        print(f"{difference.path}: {difference.left} -> {difference.right}")

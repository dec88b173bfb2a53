"""Ask about a machine that is not here: two trays of a GB200 with FlashInfer, and of the model only its config."""

from pathlib import Path

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.request import MoERequest
from moe_core.environment import assume, preset
from moe_core.explain import explain
from moe_core.explain.as_text import as_text
from moe_core.ingest import ingest
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_model

CONFIG = Path(__file__).parents[1] / "tests" / "data" / "configs" / "nvidia__DeepSeek-V3.1-NVFP4"

if __name__ == "__main__":
    machine = assume(preset("gb200"), ["flashinfer==0.7.2", "flag:TRTLLM_GEN_FUSED_MOE_USE_FLASHINFER=1"])
    deployment = MoEDeployment(environment=machine, ep_size=8, dp_size=8, max_num_tokens=4096, num_nodes=2)
    model = ingest(CONFIG)
    # TensorRT-LLM's own implementations alone, whether or not something here can run them.
    report = resolve_model(
        model.groups, deployment, candidates=load_catalog(), request=MoERequest(upstream=True), model=model.name
    )
    print(as_text(explain(report), width=100))

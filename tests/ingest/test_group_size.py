"""Weight-only formats: which sizes of scale groups mean what."""

import pytest

from moe_core.contract.vocabulary import QuantAlgo
from moe_core.ingest import ingest

CONFIG = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_attention_heads": 2,
}


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize(("stated", "quant", "group"), [(64, None, 64), (-1, QuantAlgo.W4A16, None), (None, None, 128)])
def test_a_group_of_minus_one_is_a_whole_channel(method, stated, quant, group):
    quantization = {"quant_method": method, "bits": 4}
    if stated is not None:
        quantization["group_size"] = stated
    model = ingest({**CONFIG, "quantization_config": quantization})
    problem = model.groups[0].problem
    assert problem.quant is (quant or QuantAlgo(f"W4A16_{method}"))
    assert problem.quant_group_size == group
    assert any("one scale per output channel" in note for note in model.notes) == (stated == -1)

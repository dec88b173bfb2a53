"""Under transformers' own expert and tensor parallelism, ranks give the logits and gradients of a single process."""

import os
from functools import partial

import pytest
import torch

from moe_core.testing.numerics import assert_close
from moe_core.testing.ranks import run_on_ranks

pytest.importorskip("transformers", "5.24", reason="needs transformers 5.24 or newer, whose DistributedConfig it uses")
pytest.importorskip("accelerate", reason="transformers loads no sharded model without accelerate")

TOLERANCE = 1e-5
FIELDS = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 8, "head_dim": 8,
}  # fmt: skip
FAMILIES = {"Mixtral": {"num_experts_per_tok": 6}, "GptOss": {"num_experts_per_tok": 2}}
EXPERTS = {"ep_size": 2, "tp_size": 2}
TENSORS = {"tp_size": 2}


def quiet_transformers():
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return transformers


def check(rank, folder, sizes, experts_here):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    transformers = quiet_transformers()
    from transformers.distributed import DistributedConfig

    from moe_core.integrations.transformers import register, reports

    register()
    ids = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(0))
    for family in FAMILIES:
        load = partial(transformers.AutoModelForCausalLM.from_pretrained, f"{folder}/{family}")
        whole = load(experts_implementation="eager").eval()
        shared = load(experts_implementation="moe_core", distributed_config=DistributedConfig(**sizes)).eval()
        for _ in range(2):
            with torch.no_grad():
                assert_close(shared(ids).logits, whole(ids).logits, TOLERANCE)
        assert [report.problem.num_experts for report in reports(shared).values()] == [experts_here] * 2
        for model in (whole, shared):
            model(ids, labels=ids).loss.backward()
        for (name, parameter), other in zip(whole.named_parameters(), shared.parameters(), strict=True):
            gradient = other.grad.full_tensor() if hasattr(other.grad, "full_tensor") else other.grad
            assert parameter.grad.norm() > 0, name
            assert_close(gradient, parameter.grad, TOLERANCE)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A folder with a small model of every family."""
    transformers, folder = quiet_transformers(), tmp_path_factory.mktemp("models")
    for family, fields in FAMILIES.items():
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**FIELDS, **fields)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / family)
    return str(folder)


@pytest.mark.dist
@pytest.mark.parametrize(("sizes", "experts_here"), [(EXPERTS, 4), (TENSORS, 8)], ids=["experts", "tensors"])
def test_two_ranks_equal_one_process(checkpoints, sizes, experts_here):
    run_on_ranks(2, check, checkpoints, sizes, experts_here)

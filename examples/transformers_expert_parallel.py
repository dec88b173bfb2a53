"""Expert parallelism of transformers with experts of moe_core: the same logits on any number of ranks.

    torchrun --nproc-per-node 2 examples/transformers_expert_parallel.py

transformers shards the experts and brings them their tokens; it needs `accelerate` for that. Without torchrun, this is
the single process to compare with.
"""

import os
import tempfile

import torch
import transformers
from transformers.distributed import DistributedConfig

from moe_core.integrations.transformers import register, reports

SIZES = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_local_experts": 8}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}


def load(folder, ranks):
    parallel = {"distributed_config": DistributedConfig(tp_size=ranks, ep_size=ranks)} if ranks > 1 else {}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, experts_implementation="moe_core", **parallel)


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    register()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        # In place of a checkpoint: every rank writes the same.
        transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, **HEADS)).save_pretrained(folder)
        model = load(folder, ranks).eval()
    ids = torch.randint(128, (2, 16))
    with torch.no_grad():
        logits = model(ids).logits
    if rank == 0:
        print(f"{ranks} ranks: logits {', '.join(f'{x:.5f}' for x in logits[0, -1, :6].tolist())}")
        for name, report in reports(model).items():
            print(f"{name}: {report.problem.num_experts} experts a rank, {report.winner().identity}")
    if ranks > 1:
        torch.distributed.destroy_process_group()

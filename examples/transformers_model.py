"""A model of transformers whose experts moe_core selects and runs: one line, the same logits, a report per layer."""

import torch
import transformers

from moe_core.integrations.transformers import register, reports


def tiny_gpt_oss():
    config = transformers.GptOssConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=8,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 150000.0},
    )
    return transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval()


if __name__ == "__main__":
    torch.manual_seed(0)
    model, ids = tiny_gpt_oss(), torch.randint(128, (2, 16))
    with torch.no_grad():
        before = model(ids).logits
        # from_pretrained and from_config take experts_implementation="moe_core" just as well.
        register()
        model.set_experts_implementation("moe_core")
        after = model(ids).logits
    torch.testing.assert_close(after, before)
    print(f"the same logits, up to {(after - before).abs().max().item():.1e}")

    for name, report in reports(model).items():
        print(f"{name}: {report.winner().identity}")
    problem = report.problem
    print(f"found: {problem.activation}, bias {problem.bias}, {problem.num_experts} experts, {problem.top_k} per token")

    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3)
    for step in range(3):
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}")

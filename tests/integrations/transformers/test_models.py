"""Whole models: the same logits, gradients and training as with transformers' own experts, one line away."""

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers", "5.7", reason="needs transformers 5.7 or newer")

from moe_core.contract.request import MoERequest  # noqa: E402 - transformers may be missing
from moe_core.contract.vocabulary import ActivationType  # noqa: E402
from moe_core.integrations.transformers import register, reports  # noqa: E402
from moe_core.testing.numerics import assert_close, tolerance_in  # noqa: E402
from moe_plugins.triton_moe import CANDIDATES  # noqa: E402

TRITON = CANDIDATES[0]
needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
)

TOLERANCE = 5e-6
"""Several layers, and attention between them, upon what one layer of experts may differ by."""
COMMON = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MLA = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
GROUPED = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, **ROUTED}
MODELS = {
    "Mixtral": {"num_local_experts": 8, "intermediate_size": 16},
    "Qwen3Moe": {"num_experts": 8, **ROUTED},
    "DeepseekV3": {**GROUPED, **MLA},
    "Glm4Moe": GROUPED,
    "GptOss": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 16},
    "MiniMaxM2": {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 16},
    "NemotronH": {
        "layers_block_type": ["mamba", "moe", "attention", "moe"], "n_routed_experts": 8, "moe_latent_size": 24,
        "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8,
        "moe_shared_expert_intermediate_size": 16, "n_group": 2, "topk_group": 1, **ROUTED,
    },
    "Gemma4": {
        "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 16, "enable_moe_block": True,
        "intermediate_size": 32, "global_head_dim": 8, "hidden_size_per_layer_input": 0,
    },
}  # fmt: skip


def config_of(family):
    name = f"{family}TextConfig" if hasattr(transformers, f"{family}TextConfig") else f"{family}Config"
    fields = {**COMMON, **MODELS[family]}
    if "layers_block_type" in fields:
        del fields["num_hidden_layers"]
    return getattr(transformers, name)(**fields)


def model_of(family, implementation):
    torch.manual_seed(0)
    config = config_of(family)
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation=implementation).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return model


def ids():
    return torch.randint(3, 64, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _registered():
    register()


@pytest.mark.parametrize("family", MODELS)
@torch.no_grad()
def test_logits_equal_eager(family):
    eager = model_of(family, "eager")
    ours = model_of(family, "moe_core")
    expected = eager(ids()).logits
    assert_close(ours(ids()).logits, expected, TOLERANCE)
    assert reports(eager) == {}
    eager.set_experts_implementation("moe_core")
    assert_close(eager(ids()).logits, expected, TOLERANCE)
    assert len(reports(eager)) == len(reports(ours)) >= 1
    for name, report in reports(eager).items():
        assert name.endswith("experts"), name
        assert report.problem.top_k == 2
        assert report.winner().family == "TORCH_GROUPED"


@torch.no_grad()
def test_reports_come_before_the_first_forward_too():
    model = model_of("NemotronH", "moe_core")
    before = reports(model)
    assert list(before) == ["model.layers.1.mixer.experts", "model.layers.3.mixer.experts"]
    (problem,) = {report.problem for report in before.values()}
    assert (problem.activation, problem.bias, problem.top_k) == (ActivationType.RELU2, False, None)
    assert (problem.num_experts, problem.hidden_size, problem.intermediate_size) == (8, 24, 16)
    model(ids())
    assert {report.problem for report in reports(model).values()} == {problem.evolve(top_k=2)}


@torch.no_grad()
def test_a_name_has_its_own_request():
    register("moe_core_loop", request=MoERequest(backend="VANILLA"))
    model = model_of("GptOss", "moe_core_loop")
    expected = model_of("GptOss", "eager")(ids()).logits
    assert_close(model(ids()).logits, expected, TOLERANCE)
    assert {r.winner().family for r in reports(model).values()} == {"VANILLA"}
    model.set_experts_implementation("moe_core")
    assert_close(model(ids()).logits, expected, TOLERANCE)
    assert {r.winner().family for r in reports(model).values()} == {"TORCH_GROUPED"}


@torch.no_grad()
def test_a_saved_model_is_loaded_with_it(tmp_path):
    eager = model_of("GptOss", "eager")
    eager.save_pretrained(tmp_path)
    ours = type(eager).from_pretrained(tmp_path, experts_implementation="moe_core", dtype=torch.float32).eval()
    assert_close(ours(ids()).logits, eager(ids()).logits, TOLERANCE)
    assert len(reports(ours)) == 2


def losses_of(model, tokens):
    """The loss before each of three steps of training."""
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.parametrize("family", ["Mixtral", "GptOss", "NemotronH"])
def test_training_goes_the_same_way(family):
    eager, ours = (losses_of(model_of(family, name), ids()) for name in ("eager", "moe_core"))
    assert eager[0] > eager[2]
    assert_close(ours, eager, 1e-5)


@torch.no_grad()
def test_a_copy_of_the_model_has_its_own_experts():
    model = model_of("Mixtral", "moe_core")
    expected = model(ids()).logits
    other = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.zero_()
    assert_close(other(ids()).logits, expected, TOLERANCE)
    assert model(ids()).logits.norm() == 0


@torch.no_grad()
def test_bfloat16_and_generation():
    eager, ours = (model_of("Qwen3Moe", name).to(torch.bfloat16) for name in ("eager", "moe_core"))
    assert_close(ours(ids()).logits, eager(ids()).logits, 2e-2)
    ours.float()
    eager.float()
    options = {"max_new_tokens": 4, "do_sample": False}
    assert ours.generate(ids(), **options).tolist() == eager.generate(ids(), **options).tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_experts_equal_eager_on_cuda(family, dtype):
    model = model_of(family, "eager").to("cuda", dtype)
    for experts in (m for m in model.modules() if "is_transposed" in vars(m)):
        hidden = 24 if family == "NemotronH" else 32
        x = torch.randn(33, hidden, device="cuda", dtype=dtype)
        chosen = torch.rand(33, 8, device="cuda").argsort(dim=-1)[:, :2]
        scales = torch.rand(33, 2, device="cuda", dtype=dtype)
        expected = experts.float()(x.float(), chosen, scales.float())
        experts.to(dtype).config._experts_implementation = "moe_core"
        assert_close(experts(x, chosen, scales).float(), expected, tolerance_in(dtype, 8e-3))
        experts.config._experts_implementation = "eager"
    model.set_experts_implementation("moe_core")
    assert {report.deployment.environment.device for report in reports(model).values()} == {"cuda"}


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("family", ["Mixtral", "GptOss", "NemotronH"])
def test_gradients_of_triton_experts_equal_eager_on_hopper(family):
    model = model_of(family, "eager").to("cuda", torch.bfloat16)
    experts = next(module for module in model.modules() if "is_transposed" in vars(module))
    hidden = 24 if family == "NemotronH" else 32
    x, output_grad = torch.randn(2, 33, hidden, device="cuda", dtype=torch.bfloat16)
    chosen = torch.rand(33, 8, device="cuda").argsort(dim=-1)[:, :2]
    scales = torch.rand(33, 2, device="cuda", dtype=torch.bfloat16)
    found = []
    for name, dtype in (("eager", torch.float32), ("moe_core", torch.bfloat16)):
        experts.to(dtype).config._experts_implementation = name
        leaves = [x.to(dtype).requires_grad_(), *experts.parameters()]
        output = experts(leaves[0], chosen, scales.to(dtype))
        found.append(torch.autograd.grad(output, leaves, output_grad.to(dtype)))
    for expected, actual in zip(*found, strict=True):
        assert_close(actual, expected, TRITON.tolerance)


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize("family", ["Mixtral", "GptOss"])
def test_triton_experts_are_trained_on_hopper(family):
    eager, ours = (model_of(family, name).to("cuda", torch.bfloat16) for name in ("eager", "moe_core"))
    expected, losses = (losses_of(model, ids().cuda()).float() for model in (eager, ours))
    assert {report.winner().identity for report in reports(ours).values()} == {TRITON.identity}
    assert losses[0] > losses[2]
    assert_close(losses, expected, 2e-2)


@torch.no_grad()
def test_compiles_to_one_graph_after_a_first_call():
    model = model_of("Mixtral", "moe_core")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="call the model once"):
        compiled(ids())
    expected = model(ids()).logits
    assert_close(compiled(ids()).logits, expected, TOLERANCE)
    for parameter in model.model.layers[0].mlp.experts.parameters():
        parameter.mul_(2)
    assert_close(compiled(ids()).logits, model(ids()).logits, TOLERANCE)


def test_a_compiled_model_says_that_it_has_no_gradients():
    model = model_of("Mixtral", "moe_core")
    loss = model(ids(), labels=ids()).loss
    loss.backward()
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(RuntimeError, match="no gradients"):
        compiled(ids(), labels=ids()).loss.backward()


@torch.no_grad()
def test_a_model_without_the_interface_runs_as_it_is():
    model = model_of_llama4()
    assert reports(model) == {}
    before = model(ids()).logits
    model.set_experts_implementation("moe_core")
    assert_close(model(ids()).logits, before, 1e-6)
    assert reports(model) == {}


def model_of_llama4():
    torch.manual_seed(0)
    fields = {**COMMON, "intermediate_size": 16, "intermediate_size_mlp": 32, "num_local_experts": 4}
    return transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**fields)).eval()

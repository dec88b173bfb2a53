"""Rows about what was asked of the resolver: problem, deployment, request, memory, the model that was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.model_report import MoEModelReport
from moe_core.contract.problem import MoEProblem
from moe_core.contract.report import MemoryRow
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import CudaGraphMode, QuantAlgo, RequestedBy
from moe_core.explain.document import Row, muted, words
from moe_core.explain.phrases import counted, known, ranges, size

if TYPE_CHECKING:
    from moe_core.ingest import IngestedModel


def problem_row(problem: MoEProblem) -> Row:
    """Format, sizes, activation and routing in one sentence."""
    sizes = [
        f"hidden {known(problem.hidden_size)}",
        f"intermediate {known(problem.intermediate_size)}",
        f"{known(problem.num_experts)} experts",
        f"top {known(problem.top_k)}",
    ]
    if problem.num_shared_experts:
        sizes.append(f"{problem.num_shared_experts} shared")
    if problem.bias:
        sizes.append("expert bias")
    constants = [f"{c.name} {known(c.value)}" for c in problem.activation_constants or ()]
    activation = " ".join([known(problem.activation), *([f"({', '.join(constants)})"] if constants else [])])
    parts = [_format(problem), ", ".join(sizes), activation, f"{known(problem.routing)} routing{_grouped(problem)}"]
    return Row("problem", words("; ".join(parts)))


def _format(problem: MoEProblem) -> str:
    if problem.quant is QuantAlgo.NONE:
        return f"unquantized {known(problem.dtype_act)}"
    group = f" (groups of {problem.quant_group_size})" if problem.quant_group_size else ""
    return f"{known(problem.quant)}{group} from {known(problem.dtype_act)}"


def _grouped(problem: MoEProblem) -> str:
    groups = problem.num_expert_groups or 1
    return f" in {known(problem.topk_group)} of {groups} groups" if groups > 1 else ""


def deployment_row(deployment: MoEDeployment) -> Row:
    """Parallel sizes, and every switch that is not at its default."""
    d = deployment
    product = " x ".join([f"ep {d.ep_size}", f"tp {d.tp_size}", *([f"clusters {d.cluster_size}"] * d.smart_router)])
    parts = [f"{product} = {counted(d.world_size, 'rank')}"]
    if d.world_size > 1:
        parts.append(f"attention dp {d.dp_size} x tp {d.attention_tp_size}")
    if d.num_nodes is not None and d.num_nodes > 1:
        parts.append(f"{d.num_nodes} nodes")
    return Row("where", words("; ".join([*parts, *_limits(d), *_switches(d)])))


def _limits(d: MoEDeployment) -> Iterator[str]:
    if d.max_num_tokens is not None:
        yield f"at most {counted(d.max_num_tokens, 'token')} per rank"
    if d.moe_max_num_tokens is not None:
        yield f"chunks of {d.moe_max_num_tokens}"
    if d.max_dispatch_tokens is not None:
        yield f"dispatch buffers for {d.max_dispatch_tokens}"


def _switches(d: MoEDeployment) -> Iterator[str]:
    if d.eplb_enabled:
        yield "EPLB" + (f" with {d.num_slots} slots" if d.num_slots is not None else "")
    if d.dwdp_size > 1:
        yield f"DWDP {d.dwdp_size}"
    if d.cuda_graph is not CudaGraphMode.NONE:
        yield f"CUDA graphs: {d.cuda_graph}"
    if d.moe_lora_enabled:
        yield "LoRA on routed experts"
    if d.batch_invariant:
        yield "batch invariant"


def request_row(request: MoERequest) -> Row:
    """What was asked for, and by whom."""
    asked = [
        f"{kind} {text}" + (f" ({by})" if by is not RequestedBy.AUTO else "")
        for kind, text, by in (
            ("backend", request.backend, request.backend_requested_by),
            ("communication", request.communication, request.communication_requested_by),
        )
    ]
    parts = [", ".join(asked)]
    if not request.allow_degradation:
        parts.append("no stepping down")
    if request.upstream:
        parts.append("TensorRT-LLM's own rows only")
    if request.bans:
        parts.append(f"banned: {', '.join(request.bans)}")
    return Row("asked", words("; ".join(parts)))


def memory_row(memory: MemoryRow) -> Row:
    """Bytes of one layer on the fullest rank."""
    known = [part for part in (memory.weights, memory.workspace, memory.reserved) if part is not None]
    parts = [f"weights {size(memory.weights)}", f"workspace {size(memory.workspace)}"]
    if memory.reserved:
        parts.append(f"everything else {size(memory.reserved)}")
    device = "" if memory.device is None else f" of {size(memory.device)}"
    bound = "at least " if None in (memory.weights, memory.workspace) else ""
    return Row("memory", words(f"{bound}{size(sum(known))}{device} per rank: {', '.join(parts)}"))


def total_row(model: MoEModelReport) -> Row:
    """Bytes of every layer's experts on the fullest rank."""
    return Row("weights", words(f"{size(model.weight_bytes)} of routed experts per rank, over all layers"))


def layers_row(source: IngestedModel) -> Row:
    """Which layers are MoE."""
    layers = [f"MoE {ranges(source.moe_layers)}"]
    if source.dense_layers:
        layers.append(f"dense {ranges(source.dense_layers)}")
    if source.draft_layers:
        layers.append(f"draft {ranges(source.draft_layers)}")
    kind = f" ({source.model_type})" if source.model_type else ""
    text = f"{source.name}{kind}, {counted(source.num_hidden_layers, 'layer')}: {', '.join(layers)}"
    return Row("model", words(text))


def keys_row(source: IngestedModel) -> Row:
    """Every key of the config that was read, with its value."""
    return Row("read", words(muted(", ".join(f"{key.path} = {key.value}" for key in source.keys_read))))

"""What transformers calls in place of an experts module's own forward, compiled or not."""

from __future__ import annotations

from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import nn

from moe_core.compiled import for_inference_only
from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.request import MoERequest
from moe_core.integrations.transformers.description import ExpertsLayout, describe
from moe_core.integrations.transformers.embedding import EmbeddedExperts, report_for
from moe_core.integrations.transformers.errors import UnsupportedExpertsError

# Beside the modules and not in them, so that a model is copied, pickled and saved as before.
_embedded: WeakKeyDictionary[nn.Module, EmbeddedExperts] = WeakKeyDictionary()
_seen: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
"""Modules by id: all that compiled code can carry of one."""


def run_experts(
    module: nn.Module,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    *,
    request: MoERequest,
) -> torch.Tensor:
    """The weighted sum of each token's experts, ``[T, H]`` in the type of `hidden_states`.

    Compilers see one opaque operation, for inference.

    Args:
        hidden_states: ``[T, H]``, cast to the type of the weights where it differs.
        top_k_index: integers ``[T, K]``; an id that names none of the module's experts contributes zero.
        top_k_weights: ``[T, K]``, or ``[T, E]`` to pick from.

    Raises:
        UnsupportedExpertsError: the module needs something that we lack.
        UnresolvedError: no backend runs its problem here.
        BindError: the selected backend does not take these weights.
        RuntimeError: a compiled module never ran before, or its gradients are asked for.
    """
    if torch.compiler.is_compiling():
        tensors = list(ExpertsLayout.of(module).tensors(module))
        output: torch.Tensor = _opaque(hidden_states, top_k_index, top_k_weights, tensors, id(module))
        return output
    normed = getattr(module, "has_post_expert_norm", False)
    top_k = 1 if normed else top_k_index.shape[-1]
    embedded = _embedded.get(module)
    if embedded is None or not embedded.fits(module, top_k, request):
        embedded = _embedded[module] = EmbeddedExperts(module, top_k, request)
        _seen[id(module)] = module
    embedded.load(module)
    scales_TK = top_k_weights
    if scales_TK.shape != top_k_index.shape:
        scales_TK = scales_TK.gather(1, top_k_index)
    x_TH = hidden_states.to(embedded.dtype)
    if normed:
        y_TH = embedded.run_normed(x_TH, top_k_index, scales_TK, module.get_submodule("post_expert_norm"))
    else:
        y_TH = embedded.run(x_TH, top_k_index, scales_TK)
    return y_TH.to(hidden_states.dtype)


def report_of(module: nn.Module, request: MoERequest) -> MoEResolutionReport:
    """The report that `module` runs by, or would with an unknown number of experts per token if it never ran."""
    embedded = _embedded.get(module)
    if embedded is not None and embedded.request is request:
        return embedded.report
    description = describe(module, top_k=None)
    return report_for(description, next(module.parameters()).device, request)


def refuse_fp8(module: nn.Module, *_arguments: object, **_options: object) -> torch.Tensor:
    """What FP8 experts get: they have an interface and a layout of scales of their own, which nothing here reads."""
    raise UnsupportedExpertsError(module, ["found experts in FP8, needed float32, bfloat16 or float16"], "grouped_mm")


@torch.library.custom_op("moe_core::transformers_experts", mutates_args=())
def _opaque(
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    tensors: list[torch.Tensor],  # the module has them too; here, compilers see what is read and differentiated
    module_id: int,
) -> torch.Tensor:
    module = _seen.get(module_id)
    if module is None:
        raise RuntimeError("the experts are compiled, but never ran; try: call the model once before it is compiled")
    with torch.no_grad():
        return run_experts(
            module, hidden_states, top_k_index, top_k_weights, request=_embedded[module].request
        ).contiguous()


@_opaque.register_fake
def _(hidden_states: torch.Tensor, *_others: object) -> torch.Tensor:
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


for_inference_only(_opaque, "compile the model without its experts, or train eager")

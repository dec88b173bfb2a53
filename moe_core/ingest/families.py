"""What a model family does that its configs do not say, as data.

Keys of a config come first; a family is asked only where the config is silent. Sources: the families' published
modelling code and the configuration classes of ``transformers``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from moe_core.contract.vocabulary import GroupScore, RoutingMethodType
from moe_core.ingest.reader import Reader

Scoring = Literal["softmax", "sigmoid", "sqrtsoftplus"]


@dataclass(frozen=True, slots=True)
class Family:
    """Facts of a family for where its configs are silent. Experts are gated by SiLU and have no bias by default."""

    scoring: Scoring = "softmax"
    """How router logits become scores."""
    renormalize: bool = True
    """Whether chosen weights are divided by their sum."""
    routing_bias: bool = False
    """A correction bias takes part in the choice."""
    routing: RoutingMethodType | None = None
    """The method, where it does not follow from scoring, bias and groups."""
    group_score: GroupScore = GroupScore.MAX
    """How softmax scores rank a group; groups of sigmoid scores are ranked by the sum of their two best."""
    weight_on_input: bool = False
    activation: str = "silu"
    gated: bool = True
    swiglu_bias: bool = False
    """The activation is SwigluBias with alpha 1.702, beta 1 and a clamp of 7."""
    expert_bias: bool = False
    num_shared: int = 0
    """Shared experts, as wide as routed ones."""
    shared_gate: bool = False
    """A sigmoid gate scales the shared expert."""
    dense_drafts: bool = False
    """Draft layers have no experts, whatever the layers of the model have."""
    mlp_beside: bool = False
    """MoE layers have a dense MLP too, so what is said of ``mlp`` is not said of the experts."""
    modalities: bool = False
    """Sizes may be a pair, for text and for vision."""
    refused: str = ""
    """Why the family's layers are no MoE problem."""
    notes: tuple[str, ...] = ()


_METHOD = RoutingMethodType
_SIGMOID_BIAS = Family(scoring="sigmoid", routing_bias=True)
_DEEPSEEK_V3 = replace(_SIGMOID_BIAS, routing=_METHOD.DEEPSEEK_V3)
_NO_METHOD = Family(routing_bias=True, routing=_METHOD.UNSPECIFIED)
"""Routing that no named method describes; each use says in its notes what it is."""

_TABLE: Final[dict[str, Family]] = {
    "mixtral qwen3_vl_moe qwen3_omni_moe qwen3_omni_moe_thinker mellum lara_mini aria granitemoe granitemoe_swa "
    "granitemoehybrid granitemoeshared minimax minimax_text_01 cohere2_moe dbrx bailing_moe step3": Family(),
    "qwen3_moe olmoe flex_olmo jamba deepseek deepseek_v2 deepseek_ocr2 unlimited_ocr": Family(renormalize=False),
    "qwen2_moe qwen3_omni_moe_talker": Family(renormalize=False, shared_gate=True),
    "qwen3_next qwen3_5_moe qwen4_exp": Family(shared_gate=True),
    "mistral4 mistral_large4": Family(group_score=GroupScore.TOP2_SUM),
    "hunyuan_v1_moe hunyuan_moe hunyuan": Family(num_shared=1),
    "phimoe": Family(renormalize=False, routing=_METHOD.SPARSE_MIXER),
    "deepseek_v3 deepseek_v32 kimi_k2 kimi_k25 kimi_k3 kimi_linear glm4_moe glm4v_moe glm4_moe_lite glm_moe_dsa "
    "glm5_next axk1 axk2 bailing_hybrid bailing_moe_v2 beam dots3_note exaone_moe hy_v4 "
    "sarvam_mla sarvam_moe solar_open": _DEEPSEEK_V3,
    "mimo_v2_flash": replace(_DEEPSEEK_V3, dense_drafts=True),
    "dots1": replace(_DEEPSEEK_V3, renormalize=False),
    "nemotron_h nemotron_h_puzzle": replace(_DEEPSEEK_V3, activation="relu2", gated=False),
    "minimax_m2 afmoe dots3_note_vision_encoder hy_v3 laguna lfm2_moe muse_spark inkling2 inkling2_loop": _SIGMOID_BIAS,
    "step3p5 step3p7": replace(_SIGMOID_BIAS, dense_drafts=True),
    "minimax_m3": replace(_SIGMOID_BIAS, swiglu_bias=True),
    "flint": Family(scoring="sigmoid"),
    "llama4": Family("sigmoid", False, routing=_METHOD.LLAMA4, weight_on_input=True, num_shared=1),
    "deepseek_v4": Family("sqrtsoftplus", routing_bias=True, routing=_METHOD.DEEPSEEK_V4),
    "gpt_oss openai_privacy_filter": Family(swiglu_bias=True, expert_bias=True),
    "gemma4 diffusion_gemma": Family(
        activation="gelu_pytorch_tanh",
        mlp_beside=True,
        notes=(
            "a dense MLP runs beside the experts; it is not counted as a shared expert",
            "the router multiplies the weights by a learned scale per expert",
        ),
    ),
    "arctic": Family(mlp_beside=True, notes=("a dense MLP runs beside the experts; it is no shared expert",)),
    "jetmoe": Family(notes=("attention is a mixture of experts too; the problems describe the MLP experts only",)),
    "ernie4_5_moe ernie4_5_vl_moe": replace(
        _NO_METHOD, modalities=True, dense_drafts=True, notes=("routing adds its correction bias to softmax scores",)
    ),
    "longcat_flash": replace(
        _NO_METHOD,
        renormalize=False,
        dense_drafts=True,
        notes=(
            "routing adds its correction bias to softmax scores, and may choose identity experts, which have no "
            "weights and are not counted in num_experts",
        ),
    ),
    "zaya": replace(
        _NO_METHOD,
        renormalize=False,
        notes=("an MLP routes, over the experts and one class that skips them",),
    ),
    "kolibri1": replace(
        _NO_METHOD, scoring="sigmoid", renormalize=False, notes=("routing adds its bias to the logits, before sigmoid",)
    ),
    "inkling": replace(
        _NO_METHOD,
        scoring="sigmoid",
        dense_drafts=True,
        notes=("shared experts are scored by the router and take part in the normalization",),
    ),
    "doge": Family(refused="its experts are single neurons that are found by product keys"),
}


def family_of(reader: Reader) -> Family | None:
    """The family of a config by its model type or, failing that, by its architecture; ``None`` for an unknown one."""
    for key in ("model_type", "architectures"):
        for section in reader.sections:
            found = Reader([section], reader.journal).find([key])
            names = [] if found is None else found.value if isinstance(found.value, (list, tuple)) else [found.value]
            for name in names:
                if isinstance(name, str) and (family := _FAMILIES.get(_plain(name))) is not None:
                    return family
    return None


def _plain(name: str) -> str:
    """`name` without case, separators and the words that tell parts of one family apart."""
    stem = re.sub(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel|Model)$", "", name)
    plain = re.sub(r"[^a-z0-9]", "", stem.lower())
    return re.sub(r"(vltext|text|vl)$", "", plain) or plain


_FAMILIES: Final = {_plain(name): family for names, family in _TABLE.items() for name in names.split()}

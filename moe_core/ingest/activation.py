"""The activation between the two expert projections, and its constants."""

from __future__ import annotations

from typing import Final

from moe_core.contract.problem import ActivationConstant
from moe_core.contract.vocabulary import ActivationType
from moe_core.ingest import aliases
from moe_core.ingest.columns import PerLayer
from moe_core.ingest.errors import show
from moe_core.ingest.families import Family
from moe_core.ingest.layers import Layers
from moe_core.ingest.reader import Reader
from moe_core.ingest.sizes import Columns

_KIND = ActivationType
_GATED: Final = {
    "silu": _KIND.SWIGLU,
    "swish": _KIND.SWIGLU,
    "swiglu": _KIND.SWIGLU,
    "swigluoai": _KIND.SWIGLU_BIAS,
    "swiglu_oai": _KIND.SWIGLU_BIAS,
    "gelu": _KIND.GEGLU,
    "geglu": _KIND.GEGLU,
    "gelu_new": _KIND.GEGLU_TANH,
    "gelu_fast": _KIND.GEGLU_TANH,
    "gelu_pytorch_tanh": _KIND.GEGLU_TANH,
    "situ": _KIND.SITU,
    "relu2": _KIND.RELU2,
    "squared_relu": _KIND.RELU2,
}
_PLAIN: Final = {
    "silu": _KIND.SILU,
    "swish": _KIND.SILU,
    "gelu": _KIND.GELU,
    "relu": _KIND.RELU,
    "relu2": _KIND.RELU2,
    "squared_relu": _KIND.RELU2,
}
# What gpt-oss and its descendants compute where their configs do not say
_SWIGLU_BIAS_ALPHA = 1.702
_SWIGLU_BIAS_BETA = 1.0
_SWIGLU_BIAS_CLAMP = 7.0


def read_activation(reader: Reader, layers: Layers, family: Family | None) -> Columns:
    """Kind, constants and bias of the experts' activation."""
    kind = _kind(reader, family)
    columns: Columns = {"activation": kind, "bias": _bias(reader, family), "clamp_after_silu": False}
    clamps = _clamps_after_silu(reader, layers)
    if clamps is not None:
        columns["clamp_after_silu"] = PerLayer(clamp > 0 for clamp in clamps)
        columns["activation_constants"] = PerLayer(_constants(clamp=clamp or None) for clamp in clamps)
    elif kind is _KIND.SITU:
        caps = reader.number(aliases.SITU_GATE_CAP), reader.number(aliases.SITU_LINEAR_CAP)
        columns["activation_constants"] = tuple(
            ActivationConstant(name=name, value=cap) for name, cap in zip(("alpha", "beta"), caps, strict=True)
        )
    else:
        columns["activation_constants"] = None if kind is None else _swiglu_constants(reader, kind)
    return columns


def _kind(reader: Reader, family: Family | None) -> ActivationType | None:
    if reader.find(("mlp_gate_softcap",)) is not None:
        return _KIND.SITU
    word = reader.text(aliases.ACTIVATION, agree=False)
    if word is None and family is None:
        reader.journal.note("the activation is unknown: no key states it, and the family is not known")
        return None
    word = (word or (family.activation if family else "")).lower()
    gated = family is None or family.gated
    kind = (_GATED if gated else _PLAIN).get(word)
    if kind is None:
        reader.journal.note(f"the activation is unknown: {word!r} is outside the vocabulary")
    elif family is None and kind.is_gated:
        reader.journal.note("the experts are taken to be gated: the family is not known")
    if kind is _KIND.SWIGLU and (reader.find(aliases.SWIGLU_ALPHA) or (family is not None and family.swiglu_bias)):
        return _KIND.SWIGLU_BIAS
    return kind


def _swiglu_constants(reader: Reader, kind: ActivationType) -> tuple[ActivationConstant, ...]:
    clamp = reader.number(aliases.SWIGLU_CLAMP) if kind in (_KIND.SWIGLU, _KIND.SWIGLU_BIAS) else None
    if kind is not _KIND.SWIGLU_BIAS:
        return _constants(clamp=clamp or None)
    alpha, beta = reader.number(aliases.SWIGLU_ALPHA), reader.number(aliases.SWIGLU_BETA)
    return _constants(
        alpha=_SWIGLU_BIAS_ALPHA if alpha is None else alpha,
        beta=_SWIGLU_BIAS_BETA if beta is None else beta,
        clamp=_SWIGLU_BIAS_CLAMP if clamp is None else clamp or None,
    )


def _constants(**values: float | None) -> tuple[ActivationConstant, ...]:
    return tuple(ActivationConstant(name=name, value=v) for name, v in values.items() if v is not None)


def _clamps_after_silu(reader: Reader, layers: Layers) -> tuple[float, ...] | None:
    """One clamp per layer, 0 where there is none; ``None`` when the config has no such list."""
    found = reader.find(aliases.SWIGLU_CLAMPS_AFTER_SILU)
    if found is None:
        return None
    values = found.value if isinstance(found.value, (list, tuple)) else ()
    if len(values) not in (layers.num_target, layers.total) or any(
        not isinstance(v or 0, (int, float)) for v in values
    ):
        needed = f"a number or null for each of {layers.num_target} layers"
        reader.journal.trouble(f"{found.path} = {show(found.value)}", needed)
        return None
    return tuple(float(v or 0) for v in values) + (0.0,) * (layers.total - len(values))


def _bias(reader: Reader, family: Family | None) -> bool | None:
    """Whether experts have a bias. The flags are about all MLPs of a model, so only their denial is about experts."""
    if family is not None:
        return family.expert_bias
    return False if reader.boolean(aliases.EXPERT_BIAS) is False else None

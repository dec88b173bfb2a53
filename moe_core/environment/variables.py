"""Environment variables: the ones that take part in selection, and moe_core's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from moe_core.contract.environment import Flag

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "MOE_REBALANCE_DISABLE": "1 turns prefill rebalancing of fused-communication backends off",
        "TLLM_MOE_ENABLE_SHARED_EXPERT_FUSION": "1 folds shared experts into the routed grouped GEMM",
        "TRTLLM_CAN_USE_DEEP_EP": "0 takes DeepEP out of the automatic choice of a strategy",
        "TRTLLM_DEEP_EP_TOKEN_LIMIT": "tokens per rank that DeepEP's low-latency buffers are sized for",
        "TRTLLM_FORCE_COMM_METHOD": "the communication strategy to force, by family",
        "TRTLLM_GEN_FUSED_MOE_USE_FLASHINFER": "1 lets FlashInfer provide the quantized TRTLLM-Gen kernels",
        "TRTLLM_MOE_POST_QUANT_ALLTOALLV": "0 makes all-to-all move unquantized activations",
    }
)
"""Variables that change what is selected, with their meaning; frozen into the environment when set."""

VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "MOE_CORE_BACKEND": "backend to request: a family, an identity or a query",
        "MOE_CORE_BAN": "what may not be used: identities, families or distributions, with commas",
        "MOE_CORE_COMMUNICATION": "communication strategy to request: a family, an identity or a query",
    }
)
"""moe_core's own variables, with their meaning. An argument beats them; they beat a file, and a file beats auto."""

PREFIX = "MOE_CORE"


def flags_set(environ: Mapping[str, str], more: Iterable[str] = ()) -> tuple[Flag, ...]:
    """The selection flags, and those of `more`, that are set."""
    return tuple(Flag(name=name, value=environ[name]) for name in sorted({*FLAGS, *more}) if name in environ)


def unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence for each variable that looks like moe_core's own but is none, so that no misspelling is silent."""
    unknown = sorted(n for n in environ if n.upper().startswith(PREFIX) and n not in VARIABLES)
    return tuple(map(_unknown, unknown))


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name.upper(), VARIABLES, n=1, cutoff=0.75)
    advice = f"did you mean {close[0]}?" if close else f"variables are {', '.join(VARIABLES)}"
    return f"environment variable {name} is not read: moe_core declares none of that name; {advice}"

"""The name under which transformers finds us."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from moe_core.contract.report import MoEResolutionReport
from moe_core.contract.request import MoERequest
from moe_core.integrations.transformers.experts import refuse_fp8, report_of, run_experts

OLDEST = "5.7"
"""The first release whose models take any registered name; before, their list of names was closed."""
AUTO = MoERequest()

_requests: dict[str, MoERequest] = {}


def register(name: str = "moe_core", *, request: MoERequest = AUTO) -> None:
    """Make `name` an experts implementation of transformers: for ``model.set_experts_implementation(name)``, and for
    ``experts_implementation=name`` of ``from_pretrained`` and ``from_config``.

    Registering a name again replaces its request. Several names, each with a request, may stand side by side.

    Raises ``ImportError`` without transformers 5.7 or newer.
    """
    functions, fp8_functions = _interfaces()
    _requests[name] = request
    functions.register(name, partial(run_experts, request=request))
    fp8_functions.register(name, refuse_fp8)


def reports(model: nn.Module) -> dict[str, MoEResolutionReport]:
    """The report of every experts module of `model` that is set to a registered name, by module name.

    Sizes are those of the parameters on this rank. Until a module's first forward its number of experts per token is
    unknown, and gates abstain on it. Raises :class:`UnsupportedExpertsError` for a module that cannot run.
    """
    chosen = {name: (module, _implementation(module)) for name, module in model.named_modules()}
    return {
        name: report_of(module, _requests[implementation])
        for name, (module, implementation) in chosen.items()
        if implementation in _requests
    }


def _implementation(module: nn.Module) -> str:
    # Models hold such a config too; experts alone have the marks of the interface.
    if "is_transposed" not in vars(module) and "has_bias" not in vars(module):
        return ""
    return str(getattr(getattr(module, "config", None), "_experts_implementation", ""))


def _interfaces() -> tuple[Any, Any]:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"transformers is not installed; needed {OLDEST} or newer") from error
    from packaging.version import Version

    if Version(transformers.__version__) < Version(OLDEST):
        raise ImportError(
            f"found transformers {transformers.__version__}, needed {OLDEST} or newer: older models take no experts "
            "implementation but their own"
        )
    from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    return ALL_EXPERTS_FUNCTIONS, ALL_FP8_EXPERTS_FUNCTIONS

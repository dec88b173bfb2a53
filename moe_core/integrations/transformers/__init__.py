"""moe_core as an experts implementation of transformers: :func:`register`, set it by name, read :func:`reports`."""

from moe_core.integrations.transformers.errors import UnsupportedExpertsError
from moe_core.integrations.transformers.registration import register, reports

__all__ = ["UnsupportedExpertsError", "register", "reports"]

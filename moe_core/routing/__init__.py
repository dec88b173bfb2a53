"""Routing: router logits become expert ids and weights. Plain torch, the twin of every fused routing kernel.

Every method is the same sentence: *score* each expert, *choose* ``top_k`` of them, *weigh* the chosen ones.

- A correction bias takes part in the choice only; weights come from the score without it.
- Arithmetic is float32 whatever the logits' type. Ties go to the lower expert id.
- Rows are ordered by falling score of choice.

The exception is :mod:`~moe_core.routing.sparse_mixer`, which scores again after each pick.
"""

from moe_core.routing.config import RoutingConfig
from moe_core.routing.route import check_inputs, route, select_experts
from moe_core.routing.router import Route, Router

__all__ = ["Route", "Router", "RoutingConfig", "check_inputs", "route", "select_experts"]

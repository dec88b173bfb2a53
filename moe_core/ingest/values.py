"""What ingesting a config gives."""

from __future__ import annotations

from moe_core.contract.base import Frozen
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import LayerRole


class KeyRead(Frozen):
    """A key that was read."""

    path: str
    """Dotted path, as ``text_config.num_experts`` or ``hf_quant_config.quantization.quant_algo``."""
    value: str
    """Its value as JSON, shortened where long."""


class LayerGroup(Frozen):
    """Layers of one role that compute equal problems."""

    role: LayerRole
    layers: tuple[int, ...]
    """Indices, ascending. Draft layers are numbered after the model's own."""
    problem: MoEProblem


class IngestedModel(Frozen):
    """The MoE layers of a model, grouped where their problems are equal."""

    name: str
    """Name of the folder or file, the config's ``_name_or_path``, or its model type."""
    model_type: str
    """Of the part that holds the experts; empty when the config does not say."""
    architectures: tuple[str, ...]
    num_hidden_layers: int
    """Layers of the model itself, without draft layers."""
    groups: tuple[LayerGroup, ...]
    """In order of role (target first), then of their first layer."""
    keys_read: tuple[KeyRead, ...]
    """Every key that was present and looked at, in the order of reading."""
    notes: tuple[str, ...] = ()
    """What was inferred and why, and what the problems do not say."""

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Indices of the model's own MoE layers, ascending."""
        return self._layers(LayerRole.TARGET)

    @property
    def draft_layers(self) -> tuple[int, ...]:
        """Indices of the MoE layers of draft (multi-token prediction) modules, ascending."""
        return self._layers(LayerRole.DRAFT)

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """Indices of the model's own layers that are not MoE, ascending."""
        moe = set(self.moe_layers)
        return tuple(i for i in range(self.num_hidden_layers) if i not in moe)

    def problem_of(self, layer: int) -> MoEProblem:
        """The problem of MoE layer `layer`; raises ``KeyError`` when that layer is not MoE."""
        for group in self.groups:
            if layer in group.layers:
                return group.problem
        raise KeyError(f"layer {layer} is not MoE; the MoE layers are {self.moe_layers + self.draft_layers}")

    def _layers(self, role: LayerRole) -> tuple[int, ...]:
        return tuple(sorted(i for group in self.groups if group.role is role for i in group.layers))

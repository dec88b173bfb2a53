"""Routed experts in Triton: one backend, whose kernels are chosen by the number of tokens or fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import torch
import triton

from moe_core.execution import BindError, Binding, MoERunContext
from moe_core.fused_weights import FusedExpertWeights
from moe_core.schedule.abilities import UnfinalizedOutput
from moe_core.weights import ExpertWeights
from moe_plugins.triton_moe import grouped_gluon
from moe_plugins.triton_moe.choice import (
    GLUON,
    GROUPED,
    NO_SORT,
    PATHS,
    SWAP_AB,
    Choice,
    Machine,
    machine_of,
    plan,
    reaching,
)
from moe_plugins.triton_moe.cost import Shape
from moe_plugins.triton_moe.gradients import are_wanted, run_recorded
from moe_plugins.triton_moe.paths import Layer, pair_rows, run
from moe_plugins.triton_moe.prepared import PreparedWeights
from moe_plugins.triton_moe.recording import Recorder
from moe_plugins.triton_moe.tuner import configs_of, table_of

MAPPED: Final = (SWAP_AB, GROUPED, GLUON)
"""Paths that leave a row per pair."""


class TritonExperts:
    """Holds weights as they came where they are in the kernels' layout, and else a copy.

    The kernels compute what comes out, and torch's operations, from the same inputs, the gradients.
    """

    _layer: Layer
    _recorder: Recorder

    def __init__(self, paths: tuple[str, ...], binding: Binding) -> None:
        missing = grouped_gluon.available() if GLUON in paths else None
        if missing is not None and paths == (GLUON,):
            raise BindError(f"cannot bind {binding.candidate.identity}: {missing}")
        self._paths = tuple(path for path in paths if path != GLUON or missing is None)
        self._binding, self._dtype, self._hidden = binding, binding.dtype, binding.hidden_size
        self._index = binding.device.index if binding.device.type == "cuda" else None
        self._shape, self._machine = _shape(binding), _machine(binding.device)
        self._prepared: PreparedWeights | None = None
        self._version = 0
        self._forced: Mapping[str, Any] | None = None

    def prepare(self, weights: ExpertWeights) -> None:
        """Copy `weights`, with gate and up joined; a second time into the same memory, which CUDA graphs may read."""
        prepared = self._prepared or PreparedWeights()
        prepared.copy(weights)
        self.adopt(prepared)

    def prepare_fused(self, weights: FusedExpertWeights) -> None:
        """Keep `weights`, and see what is updated in them in place; or copy them, where gate and up take turns or
        memory is in another order."""
        prepared = self._prepared or PreparedWeights()
        prepared.take(weights)
        self.adopt(prepared)

    @property
    def prepared(self) -> PreparedWeights | None:
        """The weights, for other backends of this layout."""
        return self._prepared

    def adopt(self, prepared: PreparedWeights) -> None:
        """Run from what another backend prepared."""
        if prepared is not self._prepared or prepared.version != self._version:
            self._prepared, self._version = prepared, prepared.version
            self._layer = _layer(self._binding, prepared.weights, self._machine)
            self._forget()

    def quantize_input(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """`x` as it is."""
        return x, None

    def run_moe(self, context: MoERunContext) -> torch.Tensor:
        """The weighted sum of this rank's experts, ``[N, H]``."""
        prepared = self._ready()
        x_NH, ids_NK, scales_NK = self._inputs(context)
        if not x_NH.shape[0]:
            return x_NH.new_empty(0, self._hidden)
        if are_wanted(prepared, x_NH, scales_NK):
            activation, slot_start = self._binding.activation, self._binding.slot_start
            return run_recorded(self._run, prepared, activation, slot_start, x_NH, ids_NK, scales_NK)
        return self._run(x_NH, ids_NK, scales_NK)

    def run_unfinalized(self, context: MoERunContext) -> UnfinalizedOutput:
        """A row per pair of token and expert; pairs whose expert is not here have the index -1. For inference."""
        prepared = self._ready()
        x_NH, ids_NK, scales_NK = self._inputs(context)
        if are_wanted(prepared, x_NH, scales_NK):
            raise RuntimeError("rows of experts that are not finalized have no gradients; try: torch.no_grad()")
        if not x_NH.shape[0]:
            return UnfinalizedOutput(x_NH.new_empty(0, self._hidden), None, ids_NK.new_empty(0))
        # Without a map there are no rows to leave, whatever is faster.
        choice = self._choice(x_NH.shape[0], tuple(path for path in self._paths if path in MAPPED) or (SWAP_AB,))
        with nullcontext() if self._index is None else torch.cuda.device(self._index):
            y_RH, expert_map = pair_rows(self._layer, choice.path, choice.config, x_NH, ids_NK)
        return UnfinalizedOutput(y_RH, None, expert_map.row_of_pair)

    def choice(self, num_rows: int) -> Choice:
        """What runs `num_rows` rows."""
        return self._choice(num_rows, self._paths)

    def configs(self, num_tokens: int) -> Sequence[Mapping[str, Any]]:
        """Paths and tiles that are worth measuring."""
        return configs_of(self._paths, self._shape, self._reaching(num_tokens))

    def use(self, config: Mapping[str, Any] | None) -> None:
        """Run by `config`, whatever the number of rows; ``None``: by the table or the cost model again."""
        if config is not None and config["path"] not in self._paths:
            raise ValueError(f"asked for path {config['path']}, and there are {', '.join(self._paths)}")
        self._forced = config
        self._forget()

    def table(self, tuned: Sequence[Any], existing: Any) -> Any:
        """A tuning table of this device and version of Triton: `existing` with `tuned` merged in."""
        reached = [(self._reaching(row.tokens), row) for row in tuned]
        return table_of(self._machine, self._shape, reached, existing)

    def _choice(self, num_rows: int, paths: tuple[str, ...]) -> Choice:
        forced = self._forced
        if forced is not None and forced["path"] in paths:
            return Choice(forced["path"], forced["config"], "table", "as asked", 0.0)
        return plan(self._machine, self._shape, self._reaching(num_rows), paths)

    def _reaching(self, num_rows: int) -> int:
        return reaching(num_rows, self._binding.num_local_slots, self._binding.num_slots)

    def _forget(self) -> None:
        self._recorder = Recorder(self._compute, self._prepared.tensors() if self._prepared else ())

    def _compute(self, x_NH: torch.Tensor, ids_NK: torch.Tensor, scales_NK: torch.Tensor) -> tuple[torch.Tensor]:
        choice = self.choice(x_NH.shape[0])
        return (run(self._layer, choice.path, choice.config, x_NH, ids_NK, scales_NK),)

    def _run(self, x_NH: torch.Tensor, ids_NK: torch.Tensor, scales_NK: torch.Tensor) -> torch.Tensor:
        return self._recorder(ids_NK.shape, x_NH, ids_NK, scales_NK)[0]

    def _ready(self) -> PreparedWeights:
        if self._prepared is None:
            raise RuntimeError("the experts have no weights yet: call prepare first")
        return self._prepared

    def _inputs(self, context: MoERunContext) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, ids, scales = context.x, context.token_selected_slots, context.token_final_scales
        if (x.dtype, ids.dtype, scales.dtype) != (self._dtype, torch.int32, torch.float32):
            raise ValueError(
                f"found rows of {x.dtype}, ids of {ids.dtype} and weights of {scales.dtype}, needed {self._dtype}, "
                "torch.int32 and torch.float32"
            )
        return x.contiguous(), ids.contiguous(), scales.contiguous()


def _top_k(binding: Binding) -> int:
    # Unknown where a token has more experts than this rank, and then reaches all of them at most.
    return binding.problem.top_k or binding.num_local_slots


def _shape(binding: Binding) -> Shape:
    return Shape(
        dtype=str(binding.dtype).removeprefix("torch."),
        experts=binding.num_local_slots,
        top_k=_top_k(binding),
        hidden=binding.hidden_size,
        inner=binding.intermediate_size,
        gated=binding.activation.kind.is_gated,
    )


def _machine(device: torch.device) -> Machine:
    if device.type != "cuda":
        return machine_of(device.type, None, triton.__version__)
    found = torch.cuda.get_device_properties(device)
    return machine_of(found.name, found.multi_processor_count, triton.__version__)


def _layer(binding: Binding, weights: FusedExpertWeights, machine: Machine) -> Layer:
    return Layer(
        weights=weights,
        activation=binding.activation,
        top_k=_top_k(binding),
        slot_start=binding.slot_start,
        multiprocessors=machine.multiprocessors,
        pdl=binding.device.type == "cuda" and torch.cuda.get_device_capability(binding.device) >= (9, 0),
    )


any_path = partial(TritonExperts, PATHS)
no_sort_only = partial(TritonExperts, (NO_SORT,))
swap_ab_only = partial(TritonExperts, (SWAP_AB,))
grouped_only = partial(TritonExperts, (GROUPED,))
gluon_only = partial(TritonExperts, (GLUON,))

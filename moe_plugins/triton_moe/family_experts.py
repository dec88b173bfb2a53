"""A backend on a family of kernels: which of its paths runs is chosen by the number of tokens, or fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton

from moe_core.execution import BindError, Binding, MoERunContext
from moe_core.routing import Route
from moe_core.schedule.abilities import RoutedCall, UnfinalizedOutput
from moe_core.weights import ExpertWeights
from moe_plugins.triton_moe.choice import Choice, Machine, machine_of, plan, reaching
from moe_plugins.triton_moe.cost import Shape
from moe_plugins.triton_moe.formats import format_name
from moe_plugins.triton_moe.gradients import are_wanted
from moe_plugins.triton_moe.options import SWAP_AB
from moe_plugins.triton_moe.paths import Family, Layer, pair_rows, run
from moe_plugins.triton_moe.recording import Recorder
from moe_plugins.triton_moe.router import TritonRouter
from moe_plugins.triton_moe.tuner import configs_of, table_of

_Inputs = tuple[torch.Tensor, ...]
"""Rows, ids, weights; and the scales of rows that came quantized, by group of columns."""


class FamilyExperts:
    """Holds what the family's kernels read."""

    _layer: Layer
    _recorder: Recorder
    _joint: Recorder

    def __init__(self, family: Family, paths: tuple[str, ...], binding: Binding) -> None:
        missing = {path: why for path in paths if (why := family.lacks(path)) is not None}
        self._family, self._paths = family, tuple(path for path in paths if path not in missing)
        if not self._paths:
            raise BindError(f"cannot bind {binding.candidate.identity}: {'; '.join(missing.values())}")
        self._sorted = tuple(path for path in self._paths if path in family.sorted) or (SWAP_AB,)
        self._binding = binding
        self._index = binding.device.index if binding.device.type == "cuda" else None
        self._shape, self._machine = _shape(binding), _machine(binding.device)
        self._prepared: Any = None  # of the family: Prepared
        self._version = 0
        self._forced: Mapping[str, Any] | None = None
        self._router: TritonRouter | None = None

    def prepare(self, weights: ExpertWeights) -> None:
        """Copy `weights` for the kernels; a second time into the same memory, which CUDA graphs may read."""
        prepared = self._prepared or self._family.prepared(self._binding.dtype)
        prepared.copy(weights)
        self.adopt(prepared)

    @property
    def prepared(self) -> Any:
        """The weights, for other backends of this layout."""
        return self._prepared

    def adopt(self, prepared: Any) -> None:
        """Run from what another backend prepared."""
        if prepared is not self._prepared or prepared.version != self._version:
            self._prepared, self._version = prepared, prepared.version
            self._layer = self._made(prepared.weights)
            self._forget()

    def quantize_input(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`x` as it is."""
        return x, None

    def run_moe(self, context: MoERunContext) -> torch.Tensor:
        """The weighted sum of this rank's experts, ``[N, H]``."""
        inputs = self._inputs(context)
        if not inputs[0].shape[0]:
            return self._nothing(inputs[0])
        return self._differentiated(*inputs) if are_wanted(self._prepared, *inputs) else self._run(*inputs)

    def joined(self, route: Route) -> RoutedCall | None:
        """Routing and the experts as one recording, where `route` is this package's kernel."""
        if not isinstance(route, TritonRouter):
            return None
        if route is not self._router:
            self._router = route
            self._forget()
        return self._run_joined

    def run_unfinalized(self, context: MoERunContext) -> UnfinalizedOutput:
        """A row per pair of token and expert; pairs whose expert is not here have the index -1. For inference."""
        inputs = self._inputs(context)
        if are_wanted(self._prepared, *inputs):
            raise RuntimeError("rows of experts that are not finalized have no gradients; try: torch.no_grad()")
        x_NH, ids_NK, _, *x_scales = inputs
        if not x_NH.shape[0]:
            return UnfinalizedOutput(self._nothing(x_NH), None, ids_NK.new_empty(0))
        # Without a map there are no rows to leave, whatever is faster.
        choice = self._choice(x_NH.shape[0], self._sorted)
        with self._on_device():
            y_RH, expert_map = pair_rows(self._layer, choice.path, choice.config, x_NH, ids_NK, *x_scales)
        return UnfinalizedOutput(y_RH, None, expert_map.row_of_pair)

    def choice(self, num_rows: int) -> Choice:
        """What runs `num_rows` rows."""
        return self._choice(num_rows, self._paths)

    def configs(self, num_tokens: int) -> Sequence[Mapping[str, Any]]:
        """Paths and tiles that are worth measuring."""
        return configs_of(self._paths, self._shape, self._reaching(num_tokens))

    def use(self, config: Mapping[str, Any] | None) -> None:
        """Run by `config`, whatever the number of rows; ``None``: by the table or the cost model again.

        Raises ``ValueError`` for a path that is not here, for tiles that are none of its and for anything else.
        """
        if config is not None:
            if odd := config.keys() - {"path", "config"}:
                raise ValueError(f"asked for {', '.join(sorted(odd))}; needed path and config")
            config = {"path": None, "config": {}, **config}
            if config["path"] not in self._paths:
                raise ValueError(f"asked for path {config['path']}, and there are {', '.join(self._paths)}")
            self._family.tiles(config["path"], config["config"])
        self._forced = config
        self._forget()

    def table(self, tuned: Sequence[Any], existing: Any) -> Any:
        """A tuning table of this device and version of Triton: `existing` with `tuned` merged in."""
        reached = [(self._reaching(row.tokens), row) for row in tuned]
        return table_of(self._machine, self._shape, reached, existing)

    def _run(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._recorder((inputs[1].shape, len(inputs)), *inputs)[0]

    def _run_joined(self, x_TH: torch.Tensor, logits_TE: torch.Tensor, bias_E: torch.Tensor | None) -> torch.Tensor:
        inputs = (x_TH, logits_TE) if bias_E is None else (x_TH, logits_TE, bias_E)
        return self._joint((x_TH.shape[0], logits_TE.dtype, len(inputs)), *inputs)[0]

    def _differentiated(self, *inputs: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"{self._binding.candidate.identity} has no gradients; try: torch.no_grad()")

    def _choice(self, num_rows: int, paths: tuple[str, ...]) -> Choice:
        forced = self._forced
        if forced is not None and forced["path"] in paths:
            return Choice(forced["path"], forced["config"], "table", "as asked", 0.0)
        return plan(self._machine, self._shape, self._reaching(num_rows), paths)

    def _reaching(self, num_rows: int) -> int:
        return reaching(num_rows, self._binding.num_local_slots, self._binding.num_slots)

    def _forget(self) -> None:
        kept = self._prepared.tensors() if self._prepared else ()
        self._recorder, self._joint = Recorder(self._compute, kept), Recorder(self._route_and_compute, kept)

    def _route_and_compute(
        self, x_TH: torch.Tensor, logits_TE: torch.Tensor, bias_E: torch.Tensor | None = None
    ) -> tuple[torch.Tensor]:
        assert self._router is not None  # joined has seen to it
        ids_TK, scales_TK = self._router(logits_TE, bias_E, None, None)
        return self._compute(x_TH, ids_TK, scales_TK)

    def _compute(self, *inputs: torch.Tensor) -> tuple[torch.Tensor]:
        # What came quantized is only read where rows are sorted.
        choice = self._choice(inputs[0].shape[0], self._sorted if len(inputs) > 3 else self._paths)
        return (run(self._layer, choice.path, choice.config, *inputs),)

    def _nothing(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(0, self._binding.hidden_size, dtype=self._binding.dtype)

    def _on_device(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._index is None else torch.cuda.device(self._index)

    def _inputs(self, context: MoERunContext) -> _Inputs:
        x, ids, scales, x_sf = context.x, context.token_selected_slots, context.token_final_scales, context.x_sf
        if self._prepared is None:
            raise RuntimeError("the experts have no weights yet: call prepare first")
        rows = self._binding.dtype if x_sf is None else self._family.moves
        if (x.dtype, ids.dtype, scales.dtype) != (rows, torch.int32, torch.float32):
            raise ValueError(
                f"found rows of {x.dtype}{'' if x_sf is None else ' with scales'}, ids of {ids.dtype} and weights of "
                f"{scales.dtype}, needed {rows}, torch.int32 and torch.float32"
            )
        # Kernels are handed addresses: what does not fit would be read past its end, or where the device has nothing.
        fits = x.shape == (len(ids), self._shape.hidden) and scales.shape == ids.shape
        if not fits or not x.get_device() == ids.get_device() == scales.get_device():
            raise ValueError(
                f"found rows {list(x.shape)} on {x.device}, ids {list(ids.shape)} on {ids.device} and weights "
                f"{list(scales.shape)} on {scales.device}; needed [N, {self._shape.hidden}], [N, K] and [N, K] on one "
                "device"
            )
        given = (x.contiguous(), ids.contiguous(), scales.contiguous())
        return given if x_sf is None else (*given, x_sf.t().contiguous())

    def _made(self, weights: Any) -> Layer:
        binding = self._binding
        return Layer(
            weights=weights,
            activation=binding.activation,
            slot_start=binding.slot_start,
            multiprocessors=self._machine.multiprocessors,
            pdl=binding.device.type == "cuda" and torch.cuda.get_device_capability(binding.device) >= (9, 0),
            family=self._family,
            dtype=binding.dtype,
        )


def _shape(binding: Binding) -> Shape:
    problem = binding.problem
    stored = None if problem.quant is None else format_name(problem.quant, problem.quant_group_size)
    if stored is None:
        raise BindError(
            f"found quant {problem.quant} and groups of {problem.quant_group_size}; needed weights that these kernels "
            "read"
        )
    return Shape(
        dtype=str(binding.dtype).removeprefix("torch."),
        experts=binding.num_local_slots,
        # Unknown where a token has more experts than this rank, and then reaches all of them at most.
        top_k=problem.top_k or binding.num_local_slots,
        hidden=binding.hidden_size,
        inner=binding.intermediate_size,
        gated=binding.activation.kind.is_gated,
        format=stored,
    )


def _machine(device: torch.device) -> Machine:
    if device.type != "cuda":
        return machine_of(device.type, None, triton.__version__)
    found = torch.cuda.get_device_properties(device)
    return machine_of(found.name, found.multi_processor_count, triton.__version__)

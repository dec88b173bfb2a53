"""Tokens are moved by a strategy: the chunks of a forward, one after another or on two streams."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from moe_core.communication import Communication
from moe_core.contract.plan import ForwardPlan, QuantizeOrder
from moe_core.schedule.abilities import LeavesUnfinalized, NeedsWorkspace, UnfinalizedOutput
from moe_core.schedule.balancer import pass_by
from moe_core.schedule.chunk import Call, ChunkRunner
from moe_core.schedule.inputs import ONLY, ForwardInputs, Turn
from moe_core.schedule.parts import LayerParts


class ExternalCommMoEScheduler:
    """Routing, dispatch, experts and combine, around a backend that exchanges nothing itself."""

    def __init__(self, parts: LayerParts) -> None:
        self._parts = parts
        self._runner = ChunkRunner(parts)
        wants, backend = parts.binding.candidate.input_requirement, parts.backend
        needs = wants.requires_run_moe_workspace and isinstance(backend, NeedsWorkspace)
        self._get_workspaces = backend.get_workspaces if needs and isinstance(backend, NeedsWorkspace) else None

    def forward(
        self, plan: ForwardPlan, inputs: ForwardInputs, turn: Turn = ONLY, *, do_finalize: bool = True
    ) -> torch.Tensor | UnfinalizedOutput:
        """This rank's tokens ``[num_tokens, H]``, padding left out; what the experts left, if that is not finalized."""
        binding = self._parts.binding
        self._refuse(plan, inputs, do_finalize)
        if not plan.chunks:
            nobody = torch.empty(0, binding.problem.top_k or 0, dtype=torch.int32, device=inputs.x.device)
            pass_by(self._parts.balancer, nobody, is_first=turn.is_first, is_last=turn.is_last)
            return self._runner.no_rows(inputs.x[:0])
        rank = binding.groups.rank if len(plan.num_tokens) > 1 else 0
        inputs = inputs.padded(plan.padded_tokens[rank])
        comm = self._parts.strategies[plan.communication or ""]
        y: torch.Tensor | UnfinalizedOutput
        if len(plan.chunks) > 1:
            y = self._chunks(plan, comm, inputs, turn, rank, do_finalize)
        else:
            sizes = plan.chunks[0].sizes
            [workspace] = self._workspaces(comm, sizes, 1)
            y = self._runner.run(Call(plan, comm, sizes, inputs, turn, do_finalize, workspace))
        num_tokens = plan.num_tokens[rank]
        return y if isinstance(y, UnfinalizedOutput) or y.shape[0] == num_tokens else y[:num_tokens]

    def _chunks(
        self,
        plan: ForwardPlan,
        comm: Communication,
        inputs: ForwardInputs,
        turn: Turn,
        rank: int,
        do_finalize: bool,
    ) -> torch.Tensor:
        aux = self._parts.aux if plan.may_overlap else None
        workspaces = self._workspaces(comm, plan.chunks[0].sizes, 1 if aux is None else 2)
        if aux is not None:
            inputs.ready.wait()
            aux.fork()
        kept = []
        for index, rows in enumerate(inputs.chunks(plan.chunks, rank)):
            chunk, here = plan.chunks[index], turn.of_chunk(index, len(plan.chunks))
            if not chunk.sizes[rank]:
                continue  # nothing is exchanged here: nobody waits
            workspace = workspaces[index % len(workspaces)]
            with aux.scope() if aux is not None and index % 2 == 0 else nullcontext():
                y = self._runner.run(Call(plan, comm, chunk.sizes, rows, here, do_finalize, workspace))
            if chunk.kept[rank]:
                assert isinstance(y, torch.Tensor)  # _refuse has seen to it
                kept.append(y)
        if aux is not None:
            aux.join()
        return torch.cat(kept) if kept else self._runner.no_rows(inputs.x[:0])

    def _workspaces(self, comm: Communication, sizes: tuple[int, ...], count: int) -> Sequence[Any]:
        if self._get_workspaces is None:
            return (None,) * count
        return self._get_workspaces([comm.max_rows(sizes)] * count)

    def _refuse(self, plan: ForwardPlan, inputs: ForwardInputs, do_finalize: bool) -> None:
        num_chunks, candidate = len(plan.chunks), self._parts.binding.candidate
        if inputs.lora_params and not candidate.capabilities.supports_moe_lora:
            raise NotImplementedError(
                f"lora_params were given, and {candidate.identity} runs no LoRA; resolve with moe_lora_enabled"
            )
        if inputs.lora_params and num_chunks > 1:
            raise NotImplementedError(
                f"LoRA runs in a single chunk, and this forward has {num_chunks}; bring fewer tokens, or raise "
                "moe_max_num_tokens"
            )
        if do_finalize:
            return
        if not isinstance(self._parts.backend, LeavesUnfinalized):
            raise NotImplementedError(f"do_finalize=False: {candidate.identity} has no run_unfinalized")
        if plan.quantize is QuantizeOrder.LOCAL and num_chunks > 1:
            raise NotImplementedError(
                f"do_finalize=False: the outputs of {num_chunks} chunks cannot be one; bring fewer tokens"
            )

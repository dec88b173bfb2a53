"""What a bound layer is made of: a rank's place, what a factory is given, and what a backend must do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch.distributed import ProcessGroup

from moe_core.activation import Activation
from moe_core.contract.candidate import MoECandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.partition import expert_partition, expert_start, width_share
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import DType
from moe_core.quantization import Format, weight_format
from moe_core.weights import ExpertWeights

Known = TypeVar("Known")

TORCH_DTYPE: Final[Mapping[DType, torch.dtype]] = MappingProxyType({d: getattr(torch, d.value) for d in DType})


class BindError(ValueError):
    """A report and what it is bound to do not fit; the message has every misfit."""


class CollectiveWatch(Protocol):
    """Knows how far each rank is, beside the collectives: a group that failed cannot tell who is missing."""

    def enter(self, collective: str) -> None:
        """This rank is about to join `collective`. Called on the hot path."""

    def explain(self, error: Exception) -> Exception:
        """`error` of a collective as one that names who is late or gone; `error` itself when that is not the cause."""


@dataclass(frozen=True)
class ParallelGroups:
    """This rank's place among the ranks of the layer, and the group in which they exchange tokens."""

    rank: int = 0
    """Rank in `group`."""
    ep_rank: int = 0
    tp_rank: int = 0
    """Rank in MoE tensor parallelism."""
    group: ProcessGroup | None = None
    """All ranks of the layer, ``world_size`` of them; ``None`` on a single rank."""
    watch: CollectiveWatch | None = None
    """Names the rank that others wait for, when a collective fails; ``None``: the failure is all that is told."""


@dataclass(frozen=True)
class Binding:
    """What the factory of a candidate is given. Sizes are this rank's own."""

    candidate: MoECandidate
    problem: MoEProblem
    deployment: MoEDeployment
    device: torch.device
    dtype: torch.dtype
    """Element type of activations before quantization, and of the output."""
    groups: ParallelGroups = ParallelGroups()

    @cached_property
    def num_slots(self) -> int:
        """Slots over all ranks: as many as experts without load balancing."""
        return self.deployment.num_slots or _known(self.problem.num_experts, "num_experts")

    @cached_property
    def slot_start(self) -> int:
        """First slot of this rank."""
        return expert_start(self.num_slots, self.deployment.ep_size, self.groups.ep_rank)

    @cached_property
    def slot_end(self) -> int:
        """One past the last slot of this rank."""
        return self.slot_start + expert_partition(self.num_slots, self.deployment.ep_size)[self.groups.ep_rank]

    @cached_property
    def slot_ends(self) -> tuple[int, ...]:
        """One past the last slot of each EP rank."""
        return tuple(accumulate(expert_partition(self.num_slots, self.deployment.ep_size)))

    @property
    def num_local_slots(self) -> int:
        """Slots of this rank."""
        return self.slot_end - self.slot_start

    @cached_property
    def hidden_size(self) -> int:
        """Width of the experts' input and output."""
        return _known(self.problem.hidden_size, "hidden_size")

    @cached_property
    def intermediate_size(self) -> int:
        """Width of one up projection on this rank; the last tensor-parallel shard may be narrower."""
        whole = _known(self.problem.intermediate_size, "intermediate_size")
        start, stop = width_share(whole, self.groups.tp_rank, self.deployment.tp_size)
        return stop - start

    @cached_property
    def activation(self) -> Activation:
        """The activation between the two projections."""
        return Activation.of(self.problem)

    @cached_property
    def weight_format(self) -> Format | None:
        """What the experts' matrices are stored as; ``None`` when they are not quantized."""
        return weight_format(_known(self.problem.quant, "quant"), self.problem.quant_group_size)


@dataclass(frozen=True, slots=True)
class MoERunContext:
    """One call of a backend. N rows, which are this rank's tokens or, after a token exchange, the dispatched ones."""

    x: torch.Tensor
    """``[N, H]``, or its quantized form; already multiplied by the router weight where the problem says so."""
    token_selected_slots: torch.Tensor
    """int32 ``[N, K]``, global slot ids. An id outside this rank's slots, negative ones included, contributes zero,
    whatever its row of `x` and its weight hold."""
    token_final_scales: torch.Tensor
    """float32 ``[N, K]``."""
    x_sf: torch.Tensor | None = None
    """Scales of a quantized `x`, row by row; a kernel that wants another layout makes it itself."""
    max_num_tokens: int | None = None
    """Most rows that a rank brings to this chunk, the same on every rank; ``None`` where rows are exchanged outside."""
    lora_params: Any = None
    """Adapters of the routed experts; only for a candidate that declares them."""
    workspace: Any = None
    """What the backend's ``get_workspaces`` gave for this chunk; only for a candidate that declares one."""


class MoEBackend(Protocol):
    """Computes routed experts on one rank: no communication, no load balancing."""

    def prepare(self, weights: ExpertWeights) -> None:
        """Take this rank's weights (its slots, its tensor-parallel shard) and permute them for the kernels.

        Whatever has to be allocated for capture in a CUDA graph is allocated here.
        """

    def quantize_input(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`x` ``[N, H]`` as the kernels take it, and its scales; zero rows are legal."""

    def run_moe(self, context: MoERunContext) -> torch.Tensor:
        """The weighted sum of this rank's experts per row: ``[N, H]`` in the binding's element type; N may be zero."""


@runtime_checkable
class SharesPrepared(Protocol):
    """A backend that can run from what another one prepared, and lets others do so: weights are in memory once.

    Backends of one layer whose candidates have the same ``prepared_layout`` must be able to.
    """

    @property
    def prepared(self) -> Any:
        """What ``prepare`` made, or was adopted; ``None`` before either."""

    def adopt(self, prepared: Any) -> None:
        """Run from `prepared`, which a backend of the same layout made, in place of ``prepare``; copy nothing."""


def bind_factory(candidate: MoECandidate) -> Callable[[Binding], Any]:
    """The factory that `candidate` declares; the first import of its kernels. Raises :class:`BindError`."""
    if candidate.factory is None:
        raise BindError(f"{candidate.identity} is declared, but has no adapter; install a plugin that can run it")
    module, _, name = candidate.factory.partition(":")
    try:
        return cast("Callable[[Binding], Any]", getattr(import_module(module), name))
    except (ImportError, AttributeError) as error:
        raise BindError(f"the factory {candidate.factory} of {candidate.identity} cannot be loaded: {error}") from error


def refuse(what: str, errors: Sequence[str]) -> None:
    """Raise :class:`BindError` with all of `errors`, if there are any."""
    if errors:
        raise BindError("\n  ".join([f"cannot bind {what}:", *errors]))


def _known(value: Known | None, name: str) -> Known:
    if value is None:
        raise BindError(f"{name} is unknown, and a layer cannot be built without it; give it in the problem")
    return value

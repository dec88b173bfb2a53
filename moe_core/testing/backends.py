"""Conformance of a backend: every promise of :class:`~moe_core.execution.MoEBackend`, against the float32 twin.

Each ``assert_*`` takes a :class:`BackendTrial`. :data:`CHECKS` has them all, to parametrize a test with.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.check import check
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import CudaGraphMode, Device, DType
from moe_core.execution import TORCH_DTYPE, Binding, MoEBackend, MoERunContext, ParallelGroups, bind_factory
from moe_core.reference import reference_moe
from moe_core.resolve import can_implement
from moe_core.testing.nosync import no_host_sync
from moe_core.testing.numerics import assert_bitwise_equal, assert_close, poisoned_memory, tolerance_of
from moe_core.testing.weights import random_weights
from moe_core.weights import ExpertWeights

TOKEN_COUNTS = (0, 1, 7, 64)
SPLITS: tuple[dict[str, int], ...] = (
    {"ep_size": 2},
    {"ep_size": 3},
    {"tp_size": 2},
    {"tp_size": 3},
    {"tp_size": 4},
    {"ep_size": 2, "tp_size": 2},
)


class UntriedError(AssertionError):
    """Nothing was tried, so nothing is proved; the message says why."""


@dataclass(frozen=True)
class BackendTrial:
    """A candidate with a problem that it should compute, random experts, and the twin's answers."""

    candidate: MoECandidate
    problem: MoEProblem
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0

    @cached_property
    def dtype(self) -> torch.dtype:
        """Element type of activations."""
        return TORCH_DTYPE[self.problem.dtype_act or DType.BFLOAT16]

    @cached_property
    def weights(self) -> ExpertWeights:
        """All experts."""
        return random_weights(self.problem, seed=self.seed, device=self.device, dtype=self.dtype)

    @property
    def tolerance(self) -> float:
        """Largest relative error in this trial's element type."""
        tolerance = tolerance_of(self.candidate, self.dtype)
        assert tolerance is not None, f"{self.candidate} declares no tolerance"
        return tolerance

    def bind(
        self,
        deployment: MoEDeployment | None = None,
        groups: ParallelGroups | None = None,
        weights: ExpertWeights | None = None,
    ) -> MoEBackend:
        """The backend of one rank, with its share of `weights` (default: the trial's own) prepared."""
        binding = Binding(
            candidate=self.candidate,
            problem=self.problem,
            deployment=deployment or MoEDeployment(),
            device=self.device,
            dtype=self.dtype,
            groups=groups or ParallelGroups(),
        )
        backend: MoEBackend = bind_factory(self.candidate)(binding)
        share = (weights or self.weights).of_slots(binding.slot_start, binding.slot_end)
        backend.prepare(share.of_tp_rank(binding.groups.tp_rank, binding.deployment.tp_size))
        return backend

    def batch(self, num_tokens: int) -> MoERunContext:
        """Random rows, each with `top_k` different experts at random."""
        generator = torch.Generator().manual_seed(self.seed + num_tokens)
        E, _, H = self.weights.w1_EIH.shape
        K = self.problem.top_k or 1
        x = torch.randn(num_tokens, H, generator=generator).to(self.device, self.dtype)
        ids = torch.rand(num_tokens, E, generator=generator).argsort(dim=-1)[:, :K].int().to(self.device)
        scales = torch.rand(num_tokens, K, generator=generator).to(self.device)
        return MoERunContext(x=x, token_selected_slots=ids, token_final_scales=scales)

    def run(self, backend: MoEBackend, batch: MoERunContext, *, poisoned: bool = True) -> torch.Tensor:
        """The backend's answer, computed without gradients, and in poisoned memory unless told otherwise."""
        with poisoned_memory() if poisoned else nullcontext(), torch.no_grad():
            x, x_sf = backend.quantize_input(batch.x)
            return backend.run_moe(MoERunContext(x, batch.token_selected_slots, batch.token_final_scales, x_sf))

    def expected(self, batch: MoERunContext, weights: ExpertWeights | None = None) -> torch.Tensor:
        """The twin's answer, with `weights` (default: the trial's own)."""
        # Here rows count as already multiplied by their router weights, where the problem asks for that.
        problem = self.problem.evolve(apply_router_weight_on_input=False)
        weights = weights or self.weights
        return reference_moe(problem, batch.x, weights, batch.token_selected_slots, batch.token_final_scales)


def assert_matches_twin(trial: BackendTrial) -> None:
    """Close to the twin, in the element type of the problem, for no token, one, odd counts and many."""
    backend = trial.bind()
    for num_tokens in TOKEN_COUNTS:
        batch = trial.batch(num_tokens)
        actual = trial.run(backend, batch)
        assert actual.dtype is trial.dtype, f"output is {actual.dtype}, expected {trial.dtype}"
        assert_close(actual, trial.expected(batch), trial.tolerance)


def assert_takes_skew(trial: BackendTrial) -> None:
    """All tokens on the same experts, and all on a single one, leave the other experts empty."""
    backend, batch = trial.bind(), trial.batch(64)
    same = batch.token_selected_slots[:1].expand_as(batch.token_selected_slots).contiguous()
    single = torch.full_like(same, -1)
    single[:, 0] = same[:, 0]
    for ids in (same, single):
        skewed = MoERunContext(batch.x, ids, batch.token_final_scales)
        assert_close(trial.run(backend, skewed), trial.expected(skewed), trial.tolerance)


def assert_foreign_ids_add_zero(trial: BackendTrial) -> None:
    """-1 and ids past the last slot add exactly zero, even when row and weight are NaN."""
    backend, batch = trial.bind(), trial.batch(7)
    ids, scales = batch.token_selected_slots.clone(), batch.token_final_scales.clone()
    ids[0, 0] = -1
    ids[2, :] = -1
    ids[5, :] = trial.weights.w1_EIH.shape[0]
    expected = trial.expected(MoERunContext(batch.x, ids, scales))
    x = batch.x.clone()
    x[[2, 5]], scales[[2, 5]], scales[0, 0] = torch.nan, torch.nan, torch.nan
    actual = trial.run(backend, MoERunContext(x, ids, scales))
    assert_bitwise_equal(actual[[2, 5]], torch.zeros_like(actual[[2, 5]]))
    assert_close(actual, expected, trial.tolerance)
    nowhere = trial.run(backend, MoERunContext(x, torch.full_like(ids, -1), scales))
    assert_bitwise_equal(nowhere, torch.zeros_like(nowhere))


def assert_ranks_add_up(trial: BackendTrial) -> None:
    """The outputs of all ranks sum to the whole, in every split of experts and matrices that the candidate takes."""
    batch = trial.batch(16)
    # Packages are left unknown: it is known here that the candidate runs, and asked which sizes it takes.
    splits = [MoEDeployment(environment=MoEEnvironment(packages=None), **sizes) for sizes in SPLITS]
    sound = [split for split in splits if not check(trial.problem, split)]
    taken = [split for split in sound if can_implement(trial.candidate, trial.problem, split)]
    if not taken:
        raise UntriedError(f"{trial.candidate} takes no split of this problem; choose sizes that it can split")
    for split in taken:
        answers = []
        for rank in range(split.world_size):
            ep_rank, tp_rank = divmod(rank, split.tp_size)
            backend = trial.bind(split, ParallelGroups(rank=rank, ep_rank=ep_rank, tp_rank=tp_rank))
            answers.append(trial.run(backend, batch).float())
        assert_close(torch.stack(answers).sum(dim=0), trial.expected(batch), trial.tolerance)


def assert_repeats_bitwise(trial: BackendTrial) -> None:
    """A second call, and the weights loaded again after others, give the same bits, if the candidate says so."""
    able = trial.candidate.capabilities
    assert_same = assert_bitwise_equal if able.deterministic else partial(assert_close, tolerance=trial.tolerance)
    backend, batch = trial.bind(), trial.batch(64)
    # Poisoned memory would make torch's own operations deterministic, which is what is to be found out.
    first = trial.run(backend, batch, poisoned=False)
    assert_same(trial.run(backend, batch, poisoned=False), first)
    if able.reloadable:
        others = replace(trial, seed=trial.seed + 1).weights
        backend.prepare(others)
        assert_close(trial.run(backend, batch), trial.expected(batch, others), trial.tolerance)
        backend.prepare(trial.weights)
        assert_same(trial.run(backend, batch, poisoned=False), first)


def assert_leaves_inputs_alone(trial: BackendTrial) -> None:
    """Neither the rows, nor ids, nor weights are written to."""
    backend, batch = trial.bind(), trial.batch(7)
    inputs = {"x": batch.x, "ids": batch.token_selected_slots, "scales": batch.token_final_scales}
    watched = {**inputs, **trial.weights.tensors()}
    before = {name: tensor.clone() for name, tensor in watched.items()}
    trial.run(backend, batch)
    for name, tensor in watched.items():
        assert_bitwise_equal(tensor, before[name])


def assert_needs_no_host_sync(trial: BackendTrial) -> None:
    """Where the candidate may be captured in a full CUDA graph, the host waits for nothing."""
    if not can_implement(trial.candidate, trial.problem, _captured_on(trial.device)):
        return
    backend, batch = trial.bind(), trial.batch(16)
    trial.run(backend, batch, poisoned=False)  # what is compiled or allocated once may wait
    with no_host_sync():
        trial.run(backend, batch, poisoned=False)


def _captured_on(device: torch.device) -> MoEDeployment:
    # On the CPU nothing is captured: there, the question is what the operations do that a GPU would be given.
    # Packages are left unknown: it is known here that the candidate runs.
    environment = MoEEnvironment(packages=None)
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        environment = environment.evolve(device=Device.CUDA, sm=10 * major + minor)
    return MoEDeployment(environment=environment, cuda_graph=CudaGraphMode.FULL)


def assert_gradients_match_twin(trial: BackendTrial) -> None:
    """Gradients of rows, scales and weights equal those of the twin in float32, for a random gradient of the output.

    Foreign ids and NaN rows leave no trace in them, and those of an expert that nobody chose are zero.
    Not in :data:`CHECKS`: a backend may be for inference only.
    """

    output_grad = trial.batch(17).x[1:]

    def gradients(
        answer: Callable[[MoERunContext, ExpertWeights], torch.Tensor], dtype: torch.dtype
    ) -> dict[str, torch.Tensor]:
        batch = trial.batch(16)
        x, scales, ids = batch.x.to(dtype, copy=True), batch.token_final_scales, batch.token_selected_slots
        ids[::4, 0], ids[3], ids[ids == 0], x[3] = -1, -1, -1, torch.nan
        weights = trial.weights.map(lambda tensor: tensor.to(dtype, copy=True).requires_grad_())
        leaves = {"x": x.requires_grad_(), "scales": scales.requires_grad_(), **weights.tensors()}
        with poisoned_memory():
            answer(MoERunContext(x, ids, scales), weights).backward(output_grad.to(dtype))  # type: ignore[no-untyped-call]
        return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}

    expected = gradients(trial.expected, torch.float32)
    actual = gradients(lambda batch, weights: trial.bind(weights=weights).run_moe(batch), trial.dtype)
    assert actual.keys() == expected.keys(), f"gradients of {sorted(actual)}, expected of {sorted(expected)}"
    for name, gradient in expected.items():
        assert_close(actual[name], gradient, trial.tolerance)


CHECKS: tuple[Callable[[BackendTrial], None], ...] = (
    assert_matches_twin,
    assert_takes_skew,
    assert_foreign_ids_add_zero,
    assert_ranks_add_up,
    assert_repeats_bitwise,
    assert_leaves_inputs_alone,
    assert_needs_no_host_sync,
)
"""Every check of a backend."""

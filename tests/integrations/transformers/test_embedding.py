"""An experts module is described by what it is made of; its weights are used where they are, and never when stale."""

import copy
import gc
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from moe_core.contract.problem import MoEProblem
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import ActivationType, DType
from moe_core.environment.presets import preset
from moe_core.integrations.transformers import UnsupportedExpertsError, embedding, experts
from moe_core.integrations.transformers.description import describe
from moe_core.integrations.transformers.experts import refuse_fp8, report_of, run_experts
from moe_core.reference import reference_moe
from moe_core.testing.numerics import assert_bitwise_equal, assert_close, tolerance_in
from moe_plugins.torch_grouped.backend import GroupedMM
from moe_plugins.triton_moe import CANDIDATES
from moe_plugins.vanilla.backend import ReferenceLoop

E, H, I, T, K = 4, 32, 16, 7, 2  # noqa: E741 - shape letters
TOLERANCE = 1e-6
AUTO = MoERequest()
LOOP = MoERequest(backend="VANILLA")
TRITON = CANDIDATES[0]
TRITON_TOLERANCE = tolerance_in(torch.float16, TRITON.tolerance)


class Experts(nn.Module):
    """What transformers' decorator makes of an experts class."""

    def __init__(self, **marks):
        super().__init__()
        self.has_gate = self.is_concatenated = True
        self.has_bias = self.is_transposed = self.has_post_expert_norm = False
        vars(self).update(marks)
        self.act_fn = nn.SiLU()
        generator = torch.Generator().manual_seed(0)

        def parameter(*shape):
            return nn.Parameter(torch.randn(shape, generator=generator) * 0.3)

        fc1 = ("gate_up_proj", 2 * I) if self.has_gate else ("up_proj", I)
        for name, out, into in ((*fc1, H), ("down_proj", H, I)):
            self.register_parameter(name, parameter(E, *((into, out) if self.is_transposed else (out, into))))
            if self.has_bias:
                self.register_parameter(f"{name}_bias", parameter(E, out))

    def _apply_gate(self, fc1):
        gate, up = fc1.chunk(2, dim=-1)
        return self.act_fn(gate) * up


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.rand(T, E, generator=generator).argsort(dim=-1)[:, :K]
    return torch.randn(T, H, generator=generator), ids, torch.rand(T, K, generator=generator)


def run(module, *inputs, request=AUTO):
    return run_experts(module, *(inputs or batch()), request=request)


def expected(module, x, ids, scales):
    """The twin's answer; `module` is in the plain layout."""
    description = describe(module, K)
    weights = description.layout.weights(description.layout.tensors(module), description.interleaved).apart()
    return reference_moe(description.problem, x, weights, ids, scales)


@pytest.fixture
def prepared(monkeypatch):
    """The weights of every preparation, by a backend that copies."""
    calls = []

    class Copying(ReferenceLoop):
        def prepare(self, weights):
            calls.append(weights)
            super().prepare(weights.map(torch.clone))

    monkeypatch.setattr(embedding, "bind_factory", lambda candidate: Copying)
    return calls


def test_a_module_is_described_by_its_parameters():
    module = Experts(has_bias=True, is_transposed=True).to(torch.bfloat16)
    found = describe(module, top_k=K).problem
    sizes = (found.num_experts, found.hidden_size, found.intermediate_size, found.top_k)
    assert sizes == (E, H, I, K)
    assert (found.dtype_act, found.bias, found.activation) == (DType.BFLOAT16, True, ActivationType.SWIGLU)
    assert isinstance(found, MoEProblem)


REFUSALS = {
    "a parameter that nobody asked for": (
        lambda m: m.register_parameter("gate_up_proj_scale", nn.Parameter(torch.ones(E))),
        "gate_up_proj_scale: found a tensor",
    ),
    "a need that nobody knows": (lambda m: setattr(m, "has_pre_expert_norm", True), "has_pre_expert_norm=True"),
    "another activation": (lambda m: setattr(m, "act_fn", nn.ReLU()), "_apply_gate: found an activation"),
    "another element type": (lambda m: m.double(), "found torch.float64"),
    "another device": (lambda m: m.to("meta"), "found on meta"),
    "a shape that does not fit": (
        lambda m: setattr(m, "down_proj", nn.Parameter(torch.zeros(E, H, I + 1))),
        r"down_proj: found \[4, 32, 17\]",
    ),
    "a matrix for all": (lambda m: setattr(m, "down_proj", nn.Parameter(torch.zeros(H, I))), "matrix per expert"),
    "no matrix": (lambda m: delattr(m, "down_proj"), "down_proj: found NoneType"),
    "a tensor of another kind": (
        lambda m: m._parameters.update(down_proj=torch.zeros(E, H, I).as_subclass(type("Sub", (torch.Tensor,), {}))),
        "down_proj: found Sub",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_we_lack_is_refused_with_a_reason_and_a_way_out(case):
    change, reason = REFUSALS[case]
    module = Experts()
    change(module)
    for ask in (run, lambda m: report_of(m, AUTO)):
        with pytest.raises(UnsupportedExpertsError, match=reason) as caught:
            ask(module)
        assert caught.value.module is module
        assert 'set_experts_implementation("eager")' in str(caught.value)


def test_all_reasons_are_given_at_once():
    module = Experts().double()
    module.has_pre_expert_norm = True
    with pytest.raises(UnsupportedExpertsError) as caught:
        run(module)
    assert len(caught.value.reasons) == 3


def test_fp8_experts_are_refused():
    with pytest.raises(UnsupportedExpertsError, match="FP8"):
        refuse_fp8(Experts(), torch.zeros(1), None, top_k_weights=None)


@pytest.mark.parametrize("request_", [AUTO, LOOP], ids=["auto", "loop"])
@pytest.mark.parametrize("marks", [{}, {"is_transposed": True, "has_bias": True}, {"has_gate": False}], ids=str)
def test_weights_are_used_where_they_are(marks, request_, monkeypatch):
    module = Experts(**marks)
    held = []
    backend, method = (GroupedMM, "prepare_fused") if request_ is AUTO else (ReferenceLoop, "prepare")
    prepare = getattr(backend, method)

    def watched(self, weights):
        held.append(weights)
        prepare(self, weights)

    monkeypatch.setattr(backend, method, watched)
    with torch.no_grad():
        run(module, request=request_)
    (weights,) = held
    storages = {p.untyped_storage().data_ptr() for p in module.parameters()}
    tensors = [t for t in vars(weights).values() if isinstance(t, torch.Tensor)]
    assert len(tensors) >= 2
    assert {t.untyped_storage().data_ptr() for t in tensors} == storages
    with torch.no_grad():
        before = run(module, request=request_)
        module.down_proj.data.mul_(2)
        if module.has_bias:
            module.down_proj_bias.data.mul_(2)
        # A write that torch does not count is seen all the same.
        assert_close(run(module, request=request_), 2 * before, TOLERANCE)
    assert len(held) == 1


CHANGES = {
    "optimizer": lambda m: m.down_proj.mul_(2),
    "load_state_dict": lambda m: m.load_state_dict({n: p + 1 for n, p in m.state_dict().items()}),
    "new parameter": lambda m: setattr(m, "down_proj", nn.Parameter(m.down_proj + 1)),
    "new storage": lambda m: setattr(m.down_proj, "data", m.down_proj + 1),
    "element type": lambda m: m.to(torch.bfloat16).float(),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_copied_weights_are_prepared_again_when_they_change(change, prepared):
    module, inputs = Experts(), batch()
    for _ in range(3):
        assert_close(run(module, *inputs), expected(module, *inputs), TOLERANCE)
    assert len(prepared) == 1
    CHANGES[change](module)
    for _ in range(3):
        assert_close(run(module, *inputs), expected(module, *inputs), TOLERANCE)
    assert len(prepared) == 2


def test_modes_without_and_with_gradients_alternate(prepared):
    module, inputs = Experts(), batch()
    for _ in range(2):
        with torch.inference_mode():
            run(module, *inputs)
        with torch.no_grad():
            run(module, *inputs)
        module.zero_grad()
        run(module, *inputs).sum().backward()
        gradients = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        expected(module, *inputs).sum().backward()
        for ours, parameter in zip(gradients, module.parameters(), strict=True):
            assert_close(ours, parameter.grad, TOLERANCE)


@pytest.mark.parametrize("request_", [AUTO, LOOP], ids=["auto", "loop"])
@pytest.mark.parametrize(
    "marks",
    [{}, {"is_transposed": True, "has_bias": True}, {"has_gate": False}, {"has_post_expert_norm": True}],
    ids=str,
)
def test_gradients_reach_rows_weights_and_parameters(marks, request_):
    module = Experts(**marks)
    module.post_expert_norm = nn.RMSNorm(H)
    x, ids, scales = batch()
    leaves = {"x": x.requires_grad_(), "scales": scales.requires_grad_(), **dict(module.named_parameters())}
    if not module.has_post_expert_norm:
        del leaves["post_expert_norm.weight"]
    ids[0, 0] = E
    ours = torch.autograd.grad(run(module, x, ids, scales, request=request_).square().sum(), list(leaves.values()))
    by_pair = [
        sum(scales[t, k] * one(module, x[t], int(ids[t, k])) if ids[t, k] < E else 0 * scales[t, k] for k in range(K))
        for t in range(T)
    ]
    theirs = torch.autograd.grad(torch.stack(by_pair).square().sum(), list(leaves.values()))
    for name, actual, gradient in zip(leaves, ours, theirs, strict=True):
        assert actual.norm() > 0, name
        assert_close(actual, gradient, 2e-6)


@pytest.fixture
def _on_an_h200(monkeypatch):
    """What is selected on such a machine runs here, interpreted."""
    monkeypatch.setattr(embedding, "_environment", lambda _: preset("h200"))


@pytest.mark.usefixtures("_on_an_h200")
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here")
@pytest.mark.parametrize("marks", [{}, {"is_transposed": True, "has_bias": True}], ids=str)
def test_what_an_h200_would_run_is_trained(marks):
    module, (x, ids, scales) = Experts(**marks).half(), batch()
    ids[0, 0] = E
    output_grad = batch(seed=2)[0].half()

    def gradients(answer, module, x):
        leaves = {"x": x.requires_grad_(), "scales": scales.requires_grad_(), **dict(module.named_parameters())}
        found = torch.autograd.grad(answer(module, x, ids, scales), list(leaves.values()), output_grad.to(x.dtype))
        return dict(zip(leaves, found, strict=True))

    for _ in range(2):
        ours = gradients(run, module, x.half())
        theirs = gradients(expected, copy.deepcopy(module).float(), x.half().float())
        for name, gradient in theirs.items():
            assert gradient.norm() > 0, name
            assert_close(ours[name], gradient, TRITON_TOLERANCE)
        with torch.no_grad():
            module.down_proj.mul_(2)
    assert report_of(module, AUTO).winner().identity == TRITON.identity


@pytest.mark.usefixtures("_on_an_h200")
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here")
@torch.no_grad()
def test_what_an_h200_would_run_takes_more_experts_per_token_than_a_rank_has():
    module, (x, ids, scales) = Experts().half(), batch()
    x = x.half()
    ids, scales = torch.cat([torch.full((T, E), E), ids], dim=1), torch.cat([torch.ones(T, E), scales], dim=1)
    assert_close(run(module, x, ids, scales), expected(module, x, ids, scales), TRITON_TOLERANCE)
    assert report_of(module, AUTO).winner().identity == TRITON.identity


def one(module, x, expert):
    """A single expert on a single row."""

    def project(name, x):
        weight = getattr(module, name)[expert]
        bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
        return F.linear(x, weight.T if module.is_transposed else weight, bias)

    if module.has_gate:
        y = project("down_proj", module._apply_gate(project("gate_up_proj", x)))
    else:
        y = project("down_proj", module.act_fn(project("up_proj", x)))
    return module.post_expert_norm(y) if module.has_post_expert_norm else y


@torch.no_grad()
def test_weights_for_all_experts_are_picked_from():
    x, ids, _ = batch()
    every = torch.rand(T, E, generator=torch.Generator().manual_seed(3))
    assert_bitwise_equal(run(Experts(), x, ids, every), run(Experts(), x, ids, every.gather(1, ids)))


@torch.no_grad()
def test_rows_of_another_type_are_cast_and_cast_back():
    x, ids, scales = batch()
    module = Experts()
    actual = run(module, x.to(torch.bfloat16), ids, scales.to(torch.bfloat16))
    assert actual.dtype is torch.bfloat16
    rounded = (x.to(torch.bfloat16).float(), ids, scales.to(torch.bfloat16).float())
    assert_bitwise_equal(actual, run(module, *rounded).to(torch.bfloat16))


@torch.no_grad()
def test_a_foreign_pair_adds_nothing_whatever_it_holds():
    x, ids, scales = batch()
    ids[0], scales[0], x[0] = E, torch.nan, torch.nan
    for marks in ({}, {"has_post_expert_norm": True}):
        module = Experts(**marks)
        module.post_expert_norm = nn.LayerNorm(H, bias=True)
        nn.init.ones_(module.post_expert_norm.bias)
        y = run(module, x, ids, scales)
        assert not y[0].any()
        assert y[1:].isfinite().all()


@torch.no_grad()
def test_another_number_of_experts_per_token_is_another_problem():
    module = Experts()
    x, ids, scales = batch()
    run(module, x, ids, scales)
    assert report_of(module, AUTO).problem.top_k == K
    run(module, x, ids[:, :1], scales[:, :1])
    assert report_of(module, AUTO).problem.top_k == 1


@torch.no_grad()
def test_a_rank_may_hold_fewer_experts_than_a_token_has():
    module = Experts()
    x, ids, scales = batch()
    foreign = torch.full((T, E), E)
    assert_bitwise_equal(
        run(module, x, torch.cat([foreign, ids], dim=1), torch.cat([torch.ones(T, E), scales], dim=1)),
        run(module, x, ids, scales),
    )
    run(module, x, torch.cat([foreign, ids], dim=1), torch.ones(T, E + K))
    assert report_of(module, AUTO).problem.top_k is None


@torch.no_grad()
def test_a_module_is_neither_kept_alive_nor_burdened():
    module = Experts()
    state = set(vars(module))
    run(module)
    assert set(vars(module)) == state
    copy.deepcopy(module)
    count = len(experts._embedded)
    del module
    gc.collect()
    assert len(experts._embedded) < count


@torch.no_grad()
def test_a_backend_that_exchanges_tokens_is_refused(monkeypatch):
    from moe_core.contract.vocabulary import SchedulerKind
    from moe_core.execution import BindError

    registry = embedding._registry()
    winner = registry.catalog.get("moe_core.torch.grouped_mm.none")
    fused = types.SimpleNamespace(get=lambda _: winner.evolve(scheduler_kind=SchedulerKind.FUSED_COMM))
    fused_registry = types.SimpleNamespace(catalog=fused)
    report = report_of(Experts(), AUTO)
    monkeypatch.setattr(embedding, "_registry", lambda: fused_registry)
    monkeypatch.setattr(embedding, "report_for", lambda *_: report)
    with pytest.raises(BindError, match="exchanges tokens"):
        run(Experts())

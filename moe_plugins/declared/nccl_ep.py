"""NcclEP: expert parallelism inside NCCL, low-latency algorithm, rank-major rows."""

from __future__ import annotations

from moe_core.contract.declare import AtMost, Equals, Installed, Reason, divisible, is_, need, package
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import MoEEligibility, Rejection
from moe_core.contract.facts import facts_of
from moe_core.contract.problem import MoEProblem
from moe_core.contract.requirement import Condition
from moe_core.contract.vocabulary import FixableBy, QuantAlgo
from moe_core.registry import Declared, hookimpl
from moe_plugins.declared.exchange import ALL_TO_ALL, EVEN_EXPERTS, EVEN_SLOTS
from moe_plugins.declared.limits import BF16
from moe_plugins.declared.row import strategy

BEFORE_0_2 = Condition(fact="package:nccl_ep", test=Installed(below="0.2"))
NEWER = "install nccl.ep 0.2 or later"

CANDIDATE = strategy(
    "trtllm.nccl_ep.rank_major.any",
    "NCCL_EP",
    "NcclEP: low-latency exchange inside NCCL",
    (
        *ALL_TO_ALL,
        EVEN_EXPERTS,
        package("nccl_ep", hint="install NCCL's nccl.ep"),
        BF16,
        need(
            Reason.QUANT_UNSUPPORTED,
            "quant",
            Equals(value=QuantAlgo.NONE),
            NEWER,
            when=(BEFORE_0_2,),
            fixable=FixableBy.INSTALL,
        ),
        need(
            Reason.RESOURCE_EXCEEDED,
            "num_slots",
            AtMost(value=14, times="num_sms"),
            NEWER,
            when=(BEFORE_0_2,),
            fixable=FixableBy.INSTALL,
        ),
        divisible("hidden_size", 256, when=(is_("quant", QuantAlgo.NVFP4),)),
        EVEN_SLOTS,
        need(
            Reason.TOKENS_OVER_CAPACITY,
            "max_num_tokens",
            AtMost(times="moe_max_num_tokens"),
            "the buffers hold moe_max_num_tokens: raise it, or limit the tokens of a forward",
        ),
    ),
    post_quant=(QuantAlgo.FP8, QuantAlgo.NVFP4),
    max_chunks=1,
    bounded_tokens=True,
)


def launch_bytes(num_slots: int, hidden_size: int, num_sms: int) -> int:
    """Dynamic shared memory, in bytes, of a block of the combine kernels before 0.2.

    A block serves `ceil(num_slots / num_sms)` slots with as many of its 32 warps as divide evenly among them. Sending
    takes, per warp, three stages of 32 x 16 words and a barrier; receiving takes, for each of two groups, three stages
    of a bfloat16 row with a barrier, one row more, and nine rows of metadata (4 bytes per 128 columns).
    """
    slots_per_block = -(-num_slots // num_sms)
    warps = 32 // slots_per_block * slots_per_block
    metadata = hidden_size // 128 * 4
    send = warps * (3 * (32 * 16 * 4 + 16) + metadata)
    receive = 2 * (3 * (16 + 2 * hidden_size) + 2 * hidden_size + 9 * metadata)
    return max(send, receive)


class NcclEP(Declared):
    """The declaration, and the one limit that no list of predicates can state: a launch of libraries before 0.2."""

    @hookimpl
    def can_implement(self, problem: MoEProblem, deployment: MoEDeployment) -> MoEEligibility:
        """The declared answer, with the launch limit added to its reasons."""
        answer = super().can_implement(problem, deployment)
        refusal = _launch_refusal(problem, deployment)
        return answer if refusal is None else MoEEligibility.no(*answer.rejections, refusal)


def _launch_refusal(problem: MoEProblem, deployment: MoEDeployment) -> Rejection | None:
    facts = facts_of(problem, deployment)
    slots, width, sms = facts["num_slots"], facts["hidden_size"], facts["num_sms"]
    limit = facts["shared_memory_per_block"]
    if not (isinstance(slots, int) and isinstance(width, int) and isinstance(sms, int) and isinstance(limit, int)):
        return None
    if not slots or not sms:  # there is nothing to launch, or nothing to launch it on: others say so
        return None
    if not BEFORE_0_2.holds(facts) or (needed := launch_bytes(slots, width, sms)) <= limit:
        return None
    return Rejection.of(
        Reason.RESOURCE_EXCEEDED,
        fact="shared_memory_per_block",
        found=limit,
        needed=f"at least {needed} bytes for {slots} slots of width {width} on {sms} SMs",
        hint=NEWER,
        fixable_by=FixableBy.INSTALL,
    )

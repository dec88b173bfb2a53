"""Merging by reason loses nobody and invents nothing."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from moe_core.contract.decision import RejectedCandidate
from moe_core.contract.eligibility import Rejection
from moe_core.contract.reasons import MoERejectReason
from moe_core.explain.merge import EASIEST_FIRST, merge, reason_key
from moe_core.resolve.ask import NO_ADAPTER

REJECTIONS = st.builds(
    Rejection.of,
    st.sampled_from([MoERejectReason.SM_UNSUPPORTED, MoERejectReason.DEP_MISSING]),
    fact=st.sampled_from(["sm", "package:a"]),
    found=st.sampled_from([90, True, 1, "1", None]),
    needed=st.sampled_from(["100", "installed"]),
)
NAMES = st.lists(st.integers(0, 99).map(lambda i: f"a.b.c{i}.any"), unique=True, max_size=8)


@st.composite
def refused(draw):
    return [
        RejectedCandidate(
            identity=name, family="A", priority=0,
            rejections=tuple(draw(st.lists(st.one_of(REJECTIONS, st.just(NO_ADAPTER)), min_size=1, max_size=3))),
        )
        for name in draw(NAMES)
    ]  # fmt: skip


@given(candidates=refused())
def test_everybody_is_in_exactly_one_group_with_its_own_reason(candidates):
    groups = merge(candidates)
    assert Counter(m.identity for g in groups for m in g.members) == Counter(c.identity for c in candidates)
    of = {c.identity: c for c in candidates}
    for group in groups:
        for member in group.members:
            rejections = of[member.identity].rejections
            assert reason_key(rejections[0]) == reason_key(group.reasons[0])
            assert 1 + member.more == len(rejections)


@given(candidates=refused())
def test_every_reason_of_everybody_is_kept(candidates):
    of = {c.identity: c for c in candidates}
    for group in merge(candidates, every_reason=True):
        for member in group.members:
            assert member.more == 0
            assert list(map(reason_key, group.reasons)) == list(map(reason_key, of[member.identity].rejections))


@given(candidates=refused())
def test_no_two_groups_read_the_same_and_the_easiest_come_first(candidates):
    groups = merge(candidates)
    heads = [reason_key(g.reasons[0]) for g in groups]
    assert len(set(heads)) == len(heads)
    efforts = [EASIEST_FIRST.index(g.reasons[0].fixable_by) for g in groups]
    assert efforts == sorted(efforts)


@given(candidates=refused(), data=st.data())
def test_order_of_discovery_does_not_order_groups(candidates, data):
    shuffled = data.draw(st.permutations(candidates))
    assert [reason_key(g.reasons[0]) for g in merge(shuffled)] == [reason_key(g.reasons[0]) for g in merge(candidates)]


def test_only_the_missing_adapter_alone_is_told_apart():
    other = Rejection.of(MoERejectReason.SM_UNSUPPORTED, fact="sm", found=90, needed="100")
    groups = merge(
        [
            RejectedCandidate(identity="a.b.c.any", family="A", priority=0, rejections=(NO_ADAPTER,)),
            RejectedCandidate(identity="a.b.d.any", family="A", priority=0, rejections=(other, NO_ADAPTER)),
        ]
    )
    assert [(g.lacks_only_an_adapter, [m.identity for m in g.members]) for g in groups] == [
        (True, ["a.b.c.any"]),
        (False, ["a.b.d.any"]),
    ]

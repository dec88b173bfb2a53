"""What installed candidates ask about is what the probe looks at."""

import pytest

from moe_core.environment import DISTRIBUTIONS, FEATURES, FLAGS, mentioned_facts
from moe_core.registry import load_catalog


@pytest.fixture(scope="module")
def mentioned():
    return [name.partition(":")[::2] for name in mentioned_facts(load_catalog())]


def test_every_feature_and_flag_that_our_candidates_mention_is_declared(mentioned):
    assert [fact for family, fact in mentioned if family == "feature" and fact not in FEATURES] == []
    assert [fact for family, fact in mentioned if family == "flag" and fact not in FLAGS] == []


def test_every_package_that_our_candidates_mention_is_in_the_table_by_import_name(mentioned):
    packages = {fact.partition(".")[0] for family, fact in mentioned if family in ("package", "feature")}
    assert sorted(packages - set(DISTRIBUTIONS)) == []

"""The support matrix of a catalog."""

import re

from moe_core.contract.catalog import Catalog
from moe_core.contract.gates import gates_of
from moe_core.explain.matrix import HEADINGS, support, support_matrix, support_sections
from moe_core.registry import load_catalog


def test_a_row_says_what_is_declared(catalog):
    row = next(r for r in support(catalog) if r.identity == "alpha.cuda.fused.nvfp4")
    assert row.cells == ("alpha.cuda.fused.nvfp4", "ALPHA", "90", "none", "100 or 103", "NVFP4", "alpha >= 2.0")


def test_a_conditional_limit_is_not_stated_as_if_it_always_held(catalog):
    row = next(r for r in support(catalog) if r.identity == "omega.torch.loop.any")
    assert (row.sm, row.formats, row.needs) == ("any", "any", ())


def test_markdown_equals_golden_file(catalog, assert_golden):
    assert_golden("support-matrix.md", support_matrix(catalog))


def test_order_of_discovery_does_not_matter(catalog):
    assert support_matrix(Catalog(reversed(catalog.entries))) == support_matrix(catalog)


def test_every_candidate_has_a_row_and_every_limit_a_line():
    catalog = load_catalog()
    text = support_matrix(catalog)
    for candidate in catalog.candidates:
        assert text.count(f"| `{candidate.identity}` |") == 1
        assert text.count(f"### `{candidate.identity}`\n") == 1
    limits = sum(len(gates_of(c)) for c in catalog.candidates)
    assert len(re.findall(r"^- `[A-Z_]+` ", text, re.MULTILINE)) == limits


def test_markdown_tables_are_rectangular():
    rows = [line for line in support_matrix(load_catalog()).splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {len(HEADINGS) + 1}


def test_sections_hold_every_candidate_of_their_kind(catalog):
    backends, strategies = support_sections(catalog)
    assert (backends.title, strategies.title) == ("backends (8)", "communication strategies (3)")

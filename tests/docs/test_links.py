"""Links between pages lead somewhere, headings included, and every page can be reached from the README."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links(page):
    found = LINK.findall(CODE.sub("", page.read_text()))
    return [link for link in found if not link.startswith(("http://", "https://"))]


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def target(page, link):
    path, _, anchor = link.partition("#")
    return (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_resolve(page):
    for link in links(page):
        file, anchor = target(page, link)
        assert file.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(file), f"{link}: no such heading"


def test_every_page_can_be_reached():
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            ahead += [file for file, _ in (target(page, link) for link in links(page)) if file.is_file()]
    assert set(PAGES) - reached - {ROOT / "AGENTS.md"} == set()

"""What is documented exists, and what exists is documented."""

import re
from pathlib import Path

import pytest

from tests.architecture.reference import PAGES
from tests.architecture.source import ROOT

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ADR_HEADINGS = ["decision", "forces", "cost", "how we would notice", "test"]


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", text, re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Return the fragments that GitHub gives the page's headings."""
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings(path.read_text(encoding="utf-8"))]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES)
def test_reference_pages_are_as_the_code_makes_them(page: str):
    assert (ROOT / page).read_text(encoding="utf-8") == PAGES[page](), "run scripts/docs"


def test_every_relative_link_leads_somewhere():
    broken = []
    for page in pages():
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            name, _, fragment = target.partition("#")
            if "://" in target:
                continue
            path = (page.parent / name).resolve() if name else page
            if not path.exists() or (fragment and fragment not in anchors(path)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_page_can_be_reached_from_the_readme():
    seen: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        targets = [target.partition("#")[0] for target in LINK.findall(page.read_text(encoding="utf-8"))]
        ahead += [(page.parent / target).resolve() for target in targets if "://" not in target]
    assert [str(page.relative_to(ROOT)) for page in pages() if page not in seen] == []


def test_every_file_a_page_names_in_code_exists():
    """A path in backquotes that starts in one of our folders is a claim that the file is there."""
    folders = "gateway|scorers|benchmarks|tests|docs|scripts"
    named = re.compile(rf"`((?:{folders})/[\w./-]*\w)`")
    missing = {
        f"{page.relative_to(ROOT)}: {path}"
        for page in pages()
        for path in named.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    }
    assert missing == set()


def test_every_decision_record_has_a_number_of_its_own_and_the_five_headings():
    records = sorted((ROOT / "docs" / "adr").glob("*.md"))
    numbers = [record.name[:5] for record in records]
    assert all(re.fullmatch(r"\d{4}-", number) for number in numbers)
    assert records
    assert len(set(numbers)) == len(numbers)
    for record in records:
        told = [heading.lower() for heading in headings(record.read_text(encoding="utf-8"))[1:]]
        assert len(told) == len(ADR_HEADINGS), record.name
        assert all(word in heading for word, heading in zip(ADR_HEADINGS, told, strict=True)), record.name

"""The glossary is true: its terms are used, what it names exists, and no health state or event kind is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pairbus.pairing.events import Kind
from pairbus.pairing.rules.health import Health

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "pairbus"
GLOSSARY = ROOT / "docs" / "glossary.md"
_ENTRY = re.compile(
    r'^- (?:<a id="(?P<anchor>[^"]+)"></a>)?\*\*(?P<term>[^*]+)\*\*: (?P<meaning>.+)$', re.MULTILINE
)


def entries() -> dict[str, str]:
    """Each term with its definition."""
    return {match["term"]: match["meaning"] for match in _ENTRY.finditer(GLOSSARY.read_text())}


def anchors() -> set[str]:
    return {match["anchor"] for match in _ENTRY.finditer(GLOSSARY.read_text()) if match["anchor"]}


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def used_text() -> str:
    """Everything in which a term of the glossary may be used, in lower case."""
    files = [*SOURCE.rglob("*.py"), *(page for page in pages() if page != GLOSSARY)]
    return " ".join(" ".join(path.read_text().split()) for path in files).lower()


def test_every_line_of_a_list_is_an_entry_and_no_term_comes_twice() -> None:
    text = GLOSSARY.read_text().split("## Where to go next")[0]
    lines = re.findall(r"^- .*$", text, re.MULTILINE)
    terms = [match["term"] for match in _ENTRY.finditer(text)]

    assert len(lines) == len(terms) == len(set(terms))
    assert len(terms) > 50


def test_every_term_is_used() -> None:
    used = used_text()

    unused = [term for term in entries() if term not in used and term.replace(" ", "_") not in used]

    assert unused == []


@pytest.mark.parametrize("state", Health)
def test_every_health_state_has_an_entry(state: Health) -> None:
    assert state.value in entries()


@pytest.mark.parametrize("kind", Kind)
def test_every_event_kind_has_an_entry(kind: Kind) -> None:
    assert kind.value in entries()


def test_no_event_is_defined_that_does_not_exist() -> None:
    defined = {term for term in entries() if term.startswith("pairing.")}

    assert defined == {kind.value for kind in Kind}


def test_modules_and_classes_that_are_named_exist() -> None:
    names = set(re.findall(r"`([^`]+)`", GLOSSARY.read_text()))
    modules = {name for name in names if name.endswith(".py")}
    classes = {name for name in names if re.fullmatch(r"(?:[A-Z][a-z0-9]+)+", name)}
    defined = set(
        re.findall(
            r"^class (\w+)", "\n".join(path.read_text() for path in SOURCE.rglob("*.py")), re.MULTILINE
        )
    )

    assert [module for module in sorted(modules) if not (SOURCE / module).is_file()] == []
    assert sorted(classes - defined) == []
    assert modules
    assert classes


def test_links_to_a_term_lead_to_it() -> None:
    known = anchors()

    broken = {
        f"{page.relative_to(ROOT)}: {anchor}"
        for page in pages()
        for anchor in re.findall(r"glossary\.md#([^)\s]+)\)", page.read_text())
        if anchor not in known
    }

    assert sorted(broken) == []

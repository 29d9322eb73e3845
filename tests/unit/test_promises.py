"""Every promise that is quoted is on docs/promises.md with a test, and every rule or section that is cited exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import promises

ROOT = Path(__file__).parents[2]
TEXTS = (".py", ".md", ".mjs", ".js", ".html", ".toml", ".yml")
# Codes of other systems: rules of the linter, and what only looks like a code.
_LINTER = re.compile(r"#\s*(?:noqa|type):?.*$", re.MULTILINE)
_CODE = re.compile(r"(?<![\w#%&+./\"'\\-])([BPDMS][1-9]\d?)(?![\w%-]|\.\d)")
_QUOTED_CODE = re.compile(r"promise\(([^)]*)\)")
# By the part of the citation that is searched for first: much quicker than one pattern for everything.
_CITATIONS = {
    "§": re.compile(r"§ ?\d"),
    "ule": re.compile(r"\b[Rr]ules? \d+\b(?!:)"),
    "ection": re.compile(r"\b[Ss]ections? \d+(?:\.\d+)*\b"),
    "pecification": re.compile(r"\b[Tt]he specification\b|\bspecification(?:[,)]| of \w+,)"),
    "reference": re.compile(r"\b(?:wire|protocol) reference\b|\breference, \d"),
    "service-bus-protocol": re.compile(r"\bservice-bus-protocol\b"),
    "invariants": re.compile(r"\binvariants [BPDM]\d"),
}
# Public standards have sections of their own; a rule may be one of the numbered rules at the head of a module.
_STANDARD = re.compile(r"(?:AMQP 1\.0|RFC \d+|ISO \d+|WCAG [\d.]+),? ?$")
_RULE = re.compile(r"[Rr]ules? (\d+)$")
_MODULE = re.compile(r"^ in (?:`{0,2})([\w/]+\.py)")


def texts() -> Iterator[tuple[str, str]]:
    for folder in ("src", "tests", "docs", "tools", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in TEXTS and "node_modules" not in name and path != Path(__file__):
                yield name, path.read_text()
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        yield name, (ROOT / name).read_text()


def quoted(text: str) -> set[str]:
    """The codes that a text quotes."""
    markers = {code for found in _QUOTED_CODE.findall(text) for code in re.findall(r"[A-Z]\d+", found)}
    return markers | set(_CODE.findall(_LINTER.sub("", text)))


def citations(text: str) -> Iterator[str]:
    """What a text cites and the repository does not contain."""
    for found in (
        found for part, pattern in _CITATIONS.items() if part in text for found in pattern.finditer(text)
    ):
        if _STANDARD.search(text[max(0, found.start() - 20) : found.start()]):
            continue
        if rule := _RULE.match(found[0]):
            module = _MODULE.match(text[found.end() : found.end() + 80])
            head = (ROOT / "src/pairbus" / module[1]).read_text() if module else text
            if re.search(rf"^Rule {rule[1]}:", head, re.MULTILINE):
                continue
        yield " ".join(text[max(0, found.start() - 40) : found.end() + 20].split())


def test_every_code_is_on_the_page() -> None:
    known = set(promises.defined(promises.PAGE.read_text()))

    unknown = {name: sorted(codes - known) for name, text in texts() if (codes := quoted(text)) - known}

    assert unknown == {}


def test_every_promise_has_a_test_and_every_marker_a_promise() -> None:
    defined = promises.defined(promises.PAGE.read_text())
    held = promises.held()

    assert len(defined) == len(set(defined)) > 100
    assert [code for code in defined if code not in held] == []
    assert sorted(set(held) - set(defined)) == []


def test_the_page_names_the_tests_as_they_are() -> None:
    page = promises.PAGE.read_text()

    assert page == promises.written(page, promises.held()), "run tools/promises.py"


def test_what_is_cited_exists() -> None:
    missing = [f"{name}: {found}" for name, text in texts() for found in citations(text)]

    assert missing == []


@pytest.mark.parametrize(
    "text",
    [
        "as pairing §8 says",
        "noticed by the read side (rule 19).",
        "see section 6",
        "Columns of the specification",
        "rules 1 and 2 of the wire reference",
        "what follows (specification, 3.5)",
        "spec(service-bus-protocol 2, invariants B14)",
    ],
)
def test_a_citation_of_what_is_not_there_is_found(text: str) -> None:
    assert list(citations(text))


@pytest.mark.parametrize(
    "text",
    [
        "AMQP 1.0 §3.2",
        "RFC 8446, section 5",
        "Rule 1: no clock.\nas rule 1 says",
        "(rule 4 in storage/log/frame.py)",
    ],
)
def test_a_citation_of_a_standard_or_of_a_modules_own_rule_is_fine(text: str) -> None:
    assert not list(citations(text))


def test_codes_are_told_from_what_looks_like_them() -> None:
    assert quoted('(B12, M6) P36: and B1–B5, @pytest.mark.promise("D4")') == {
        "B12",
        "M6",
        "P36",
        "B1",
        "B5",
        "D4",
    }
    assert quoted("%C3 x = 'B0'  # noqa: S311\n<a href='#M24'> 0xB1 B1.5 S3-bucket") == set()

"""Write the lines of docs/promises.md that name the tests of each promise.

`--check` only compares; with a code, such as `B12`, it lists all tests of that promise.

A test says which promises it holds with ``@pytest.mark.promise("B1", "B5")``. The marker may stand at a test, at a class of tests, or in
``pytestmark`` of a module. The tests are parsed, not imported, so this needs nothing but the source.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "promises.md"
TESTS: Final = ROOT / "tests"

SHOWN_MAX: Final = 5
"""Tests named for one promise. The others are counted ("and 12 more")."""

KINDS: Final = ("simulation", "conformance", "integration", "property", "contract", "unit")
"""Folders of tests, those that say most to a user first."""

_ANCHOR: Final = re.compile(r'^<a id="([a-z]\d+)"></a>\*\*([A-Z]\d+)\. ')
_HELD: Final = "Held by: "

Test = tuple[str, str]


def defined(page: str) -> list[str]:
    """Return the codes that the page defines, in its order."""
    return [found[2] for line in page.splitlines() if (found := _ANCHOR.match(line))]


@cache
def held() -> dict[str, list[Test]]:
    """Return the tests of each promise as pairs of file (below tests/) and function, the most telling kinds first."""
    found: dict[str, set[Test]] = {}
    for file in sorted(TESTS.rglob("*.py")):
        text = file.read_text()
        for code, test in _marked(ast.parse(text)) if "mark.promise" in text else ():
            found.setdefault(code, set()).add((file.relative_to(TESTS).as_posix(), test))
    return {code: sorted(tests, key=_order) for code, tests in found.items()}


def written(page: str, tests: dict[str, list[Test]]) -> str:
    """Return the page with a fresh "Held by" paragraph below every promise."""
    paragraphs = [part for part in page.strip("\n").split("\n\n") if not part.startswith(_HELD)]
    lines = []
    for paragraph in paragraphs:
        lines.append(paragraph)
        if promise := _ANCHOR.match(paragraph):
            lines.append(_HELD + _named(tests.get(promise[2], [])))
    return "\n\n".join(lines) + "\n"


def _named(tests: list[Test]) -> str:
    by_file: dict[str, list[str]] = {}
    for file, test in _spread(tests)[:SHOWN_MAX]:
        by_file.setdefault(file, []).append(f"`{test}`")
    text = "; ".join(f"`{file}`: {', '.join(names)}" for file, names in by_file.items())
    rest = len(tests) - SHOWN_MAX
    return (text or "no test") + (f"; and {rest} more." if rest > 0 else ".")


def _spread(tests: list[Test]) -> list[Test]:
    """Return the first test of every file, then the second of every file, and so on."""
    seen: dict[str, int] = {}
    turns = []
    for place, (file, test) in enumerate(tests):
        seen[file] = seen.get(file, -1) + 1
        turns.append((seen[file], place, (file, test)))
    return [test for _, _, test in sorted(turns)]


def _order(test: Test) -> tuple[int, str, str]:
    kind = test[0].partition("/")[0]
    return (KINDS.index(kind) if kind in KINDS else len(KINDS), *test)


def _marked(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each code with the name of the test that carries it."""
    yield from _of_body(module.body, _of_assignments(module.body))


def _of_body(body: list[ast.stmt], inherited: list[str]) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            codes = inherited + _of_decorators(node.decorator_list) + _of_assignments(node.body)
            yield from _of_body(node.body, codes)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            for code in inherited + _of_decorators(node.decorator_list):
                yield code, node.name


def _of_assignments(body: list[ast.stmt]) -> list[str]:
    return [
        code
        for node in body
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
        for code in _of_decorators(node.value.elts if isinstance(node.value, ast.List) else [node.value])
    ]


def _of_decorators(decorators: list[ast.expr]) -> list[str]:
    return [
        argument.value
        for node in decorators
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def main(arguments: list[str]) -> int:
    """Write the page; with --check say whether it is up to date, with a code list the tests of that promise."""
    if arguments and arguments != ["--check"]:
        print(
            *(f"tests/{file}::{test}" for code in arguments for file, test in held().get(code, [])), sep="\n"
        )
        return 0
    page = PAGE.read_text()
    fresh = written(page, held())
    if arguments == ["--check"]:
        if fresh != page:
            print("docs/promises.md is out of date: run tools/promises.py")
        return int(fresh != page)
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

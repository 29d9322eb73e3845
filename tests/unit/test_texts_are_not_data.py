"""No decision rests on searching a sentence, and no data becomes code: both are looked for in the package's source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pairbus

SOURCE = Path(pairbus.__file__).parent
# Where an error's text is only shown, or is all that another program gives.
ALLOWED = {
    "cli/reports/spark_report.py": "a Java process tells what happened in its log alone",
    "cli/kit/errors.py": "errors of Spark's workers arrive as the text of a traceback",
    "cli/broker/store.py": "shows the place that our own error names, decides nothing",
    "server/config/declarations.py": "chooses the line of a file to show, decides nothing",
}
_ERRORS = {"error", "exc", "exception", "caught", "failure", "refusal", "inner", "cause"}
_SEARCHES = {"find", "index", "startswith", "endswith", "count"}


def _is_text_of_error(node: ast.AST, named: frozenset[str] = frozenset()) -> bool:
    """``str(error)``, ``error.message``, ``f"{error}"``, these in lower or upper case, and variables that hold them."""
    if isinstance(node, ast.Name):
        return node.id in named
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name) and function.id in ("str", "repr") and node.args:
            return isinstance(node.args[0], ast.Name) and node.args[0].id in _ERRORS
        return isinstance(function, ast.Attribute) and _is_text_of_error(function.value, named)
    if isinstance(node, ast.Attribute) and node.attr in ("message", "description", "status_description"):
        return isinstance(node.value, ast.Name) and node.value.id in _ERRORS
    if isinstance(node, ast.JoinedStr):
        return any(
            isinstance(part, ast.FormattedValue)
            and isinstance(part.value, ast.Name)
            and part.value.id in _ERRORS
            for part in node.values
        )
    return False


def searches(text: str) -> Iterator[int]:
    """Lines that look for something in an error's text."""
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = {line for scope in (tree, *functions) for line in _searches_in(scope)}
    yield from sorted(lines)


def _searches_in(scope: ast.AST) -> Iterator[int]:
    """The same within one function, whose variables may hold an error's text."""
    named = frozenset(
        target.id
        for node in ast.walk(scope)
        if not isinstance(scope, ast.Module)
        and isinstance(node, ast.Assign)
        and _is_text_of_error(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    )
    for node in ast.walk(scope):
        if isinstance(node, ast.Compare):
            is_search = any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops)
            if is_search and any(_is_text_of_error(part, named) for part in node.comparators):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _SEARCHES and _is_text_of_error(node.func.value, named):
                yield node.lineno
            is_pattern = node.func.attr in ("search", "match", "fullmatch")
            if is_pattern and any(_is_text_of_error(part, named) for part in node.args):
                yield node.lineno


def test_no_decision_rests_on_the_text_of_an_error() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if str(path.relative_to(SOURCE)) not in ALLOWED
        for line in searches(path.read_text())
    ]

    assert not found, f"decided by searching a sentence: {found}"


def test_a_search_in_an_errors_text_is_found() -> None:
    assert list(searches('if "404" in str(error).lower():\n    pass')) == [1]
    assert list(searches('re.search("x", f"{error}")')) == [1]
    assert list(searches("error.message.startswith('no')")) == [1]
    named = 'def f(error):\n    text = str(error).lower().replace("a", "")\n    return "topic" in text'
    assert list(searches(named)) == [3]
    assert not list(searches('print(str(error), "404" in numbers)'))


# Modules and functions that turn data into code or objects.
_UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle", "yaml"}
_UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}


def turns_data_into_code(text: str) -> Iterator[int]:
    """Lines that unpickle or evaluate something."""
    if not any(name in text for name in _UNSAFE_MODULES | _UNSAFE_CALLS):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _UNSAFE_CALLS:
            yield node.lineno
            continue
        else:
            continue
        if any(name.partition(".")[0] in _UNSAFE_MODULES for name in names):
            yield node.lineno


@pytest.mark.promise("D9")
def test_nothing_unpickles_or_evaluates_data() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line in turns_data_into_code(path.read_text())
    ]

    assert not found


@pytest.mark.promise("D9")
def test_unpickling_and_evaluating_are_found() -> None:
    assert list(turns_data_into_code("import pickle")) == [1]
    assert list(turns_data_into_code("from marshal import loads")) == [1]
    assert list(turns_data_into_code("eval(row)")) == [1]
    assert not list(turns_data_into_code("import re\nre.compile('x')"))

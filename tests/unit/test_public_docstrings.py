"""What a program may import explains itself: in an editor by its docstring, on the reference page by the same text."""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import azure.servicebus.exceptions
import pytest

import pairbus
from pairbus import aio, errors, spark, testing
from tools import python_reference as reference

MODULES = (pairbus, aio, testing, spark)
WORDS_MIN = 5
"""A docstring of fewer words only repeats the name."""
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"


class Public(NamedTuple):
    """A public name, method or property."""

    name: str
    docstring: str
    context: str
    """The docstring of its class, which may explain what several methods have in common."""
    value: Any

    def __str__(self) -> str:
        return self.name


def public() -> Iterator[Public]:
    for module in MODULES:
        for name in reference.public_names(module):
            value = getattr(module, name)
            if not inspect.isclass(value) and not inspect.isfunction(value):
                where = pairbus._MODULES[name]
                yield Public(f"{module.__name__}.{name}", reference.alias_text(name, where), "", None)
                continue
            docstring = reference.docstring_of(value)
            yield Public(f"{module.__name__}.{name}", docstring, "", value)
            if inspect.isclass(value) and not reference.is_error(value):
                for member in reference.members(value):
                    yield Public(
                        f"{module.__name__}.{name}.{member.name}",
                        reference.docstring_of(member.value),
                        docstring,
                        member.value,
                    )


EVERYTHING = list(public())


def parameters_of(value: object) -> list[str]:
    """The names that a caller must know, those of the official client's own methods left out."""
    if inspect.isclass(value):
        if not reference.has_constructor(value):
            return list(getattr(value, "__dataclass_fields__", {}))
        value = value.__init__
    if isinstance(value, classmethod):
        value = value.__func__
    if not inspect.isfunction(value) or hasattr(value, "__wrapped__"):
        return []
    return [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]


def named_in(text: str) -> set[str]:
    """What a docstring explains: the items of its lists, and what it quotes."""
    items = {
        name
        for line in re.findall(r"^\s*([\w, ]+): ", text, re.MULTILINE)
        for name in re.split(r",\s*", line)
    }
    return {name.strip() for name in items} | set(re.findall(r"``(\w+)", text))


@pytest.mark.parametrize("thing", EVERYTHING, ids=str)
def test_a_public_name_has_a_docstring_that_says_more_than_the_name(thing: Public) -> None:
    doc = reference.parse(thing.docstring)

    assert len(" ".join(doc.paragraphs).split()) >= WORDS_MIN
    assert not re.match(r"(See|Likewise)\b", thing.docstring), "say it: a reader of the page sees no source"


@pytest.mark.parametrize("thing", EVERYTHING, ids=str)
def test_a_docstring_explains_every_parameter(thing: Public) -> None:
    explained = named_in(thing.docstring) | named_in(thing.context)

    assert [name for name in parameters_of(thing.value) if name not in explained] == []


@pytest.mark.parametrize("thing", EVERYTHING, ids=str)
def test_an_error_that_a_docstring_names_exists(thing: Public) -> None:
    raised = reference.parse(thing.docstring).sections.get("Raises", [])
    named = [name.strip() for item in raised for name in item.partition(": ")[0].split(",")]

    unknown = [
        name
        for name in named
        if not any(hasattr(place, name) for place in (pairbus, errors, builtins, azure.servicebus.exceptions))
    ]

    assert unknown == []


@pytest.mark.parametrize("thing", EVERYTHING, ids=str)
def test_a_docstring_needs_no_list_of_codes(thing: Public) -> None:
    assert re.findall(r"\b[BPDM]\d{1,2}\b", thing.docstring) == []


def test_public_errors_explain_what_they_hold() -> None:
    for name in reference.public_names(pairbus):
        kind = getattr(pairbus, name)
        if reference.is_error(kind):
            source = inspect.getsource(kind)
            held = {
                name
                for name in re.findall(r"^\s+self\.(\w+) = ", source, re.MULTILINE)
                if not name.startswith(("_", "exc_"))
            }
            explained = named_in("\n".join(reference.parse(kind.__doc__).sections.get("Attributes", [])))

            assert held - explained == set(), name


@pytest.mark.parametrize("name", ["PairedSender", "PairedServiceBusClient"])
def test_the_twins_say_the_same(name: str) -> None:
    """The methods of ``pairbus.aio`` differ from those of ``pairbus`` only in how they are called."""
    one, other = getattr(pairbus, name), getattr(aio, name)
    differing = {
        member.name
        for member in reference.members(one)
        if inspect.cleandoc(reference.docstring_of(member.value))
        != inspect.cleandoc(reference.docstring_of(vars(other).get(member.name, member.value)))
    }

    # Threads share a client in another way than tasks do.
    assert differing <= ({"close"} if name == "PairedServiceBusClient" else set())


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_page_has_every_public_name(module: ModuleType) -> None:
    text = PAGE.read_text()

    missing = [
        name
        for name in reference.public_names(module)
        if f"### `{name}`" not in text and f"| `{name}` |" not in text
    ]

    assert missing == []

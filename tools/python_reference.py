"""Write docs/reference/python.md: every public name of the Python interface, with its signature and its docstring.

The page says what the code says. A docstring has a first paragraph, perhaps more paragraphs, and the sections ``Args``,
``Attributes``, ``Returns`` and ``Raises`` of the Google style.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import pairbus
from pairbus import aio, spark, testing
from pairbus.testing import plugin

HEAD: Final = """# Python interface

What programs import: `pairbus` (the paired client), `pairbus.aio` (the same for asyncio) and `pairbus.testing` (brokers for tests); `pairbus.spark` is for notebooks and jobs. What is not on this page, and not in `pairbus.errors`, may change without
notice. `tools/python_reference.py` writes this page from the source.

Types of the official SDK (`ServiceBusMessage`, `ServiceBusReceiver` and so on) come from `azure.servicebus`. `Message` in a signature is a `ServiceBusMessage`, an `AmqpAnnotatedMessage` or a mapping with
the arguments of a `ServiceBusMessage`; `Messages` is one of these, an iterable of them, or a `ServiceBusMessageBatch`.

```python
from pairbus import PairedServiceBusClient, SendAvailabilityOptions
from pairbus.aio import PairedServiceBusClient as AsyncPairedServiceBusClient
from pairbus.testing import Namespace, Pair
```
"""

CLIENT_HEAD: Final = """
## `pairbus`

A paired client is made from two connection strings, or from two official clients. It sends to the primary, and to the backlog while the primary does not answer
([how pairing works](../explanation/pairing.md)).
"""

AIO_HEAD: Final = """
## `pairbus.aio`

The same names for asyncio. Those that are not listed here are the ones of `pairbus`. Client and sender are entered with `async with`; what is `async` below is awaited.
"""

ERRORS_HEAD: Final = """
## Errors of `pairbus`

`from pairbus import …` has the errors that a program with a paired client may want to catch. [Errors](errors.md) lists all of PairBus.

| error | is a | meaning | attributes |
|---|---|---|---|
"""

TESTING_HEAD: Final = """
## `pairbus.testing`

Real brokers for tests ([how to test with PairBus](../how-to/test-with-pairbus.md)).
"""

SPARK_HEAD: Final = """
## `pairbus.spark`

Needs PySpark (`pairbus[spark]`). Queries use the source and the sink by their name, [`format("servicebus")`](spark-options.md), and need no import; these functions are for the rest.
"""

FIXTURES_HEAD: Final = """
## Fixtures for pytest

The plugin is installed with PairBus, and pytest loads it by itself. `@pytest.mark.namespace(name, **options)` gives the options of `namespace`; they are those of [`Namespace`](#namespace).

| fixture | scope | gives |
|---|---|---|
"""

END: Final = """
Next: the [options](options.md) with their ranges, the [events](events.md) and the [errors](errors.md).
"""

_SECTION: Final = re.compile(r"^(Args|Attributes|Returns|Raises):$")
_TITLES: Final = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Returns": "Returns",
    "Raises": "Raises",
}
_LINE_MAX: Final = 100
_TEXT_MAX: Final = 20
"""A default that is a longer text is shown by its beginning."""


class Doc(NamedTuple):
    """A docstring, taken apart."""

    paragraphs: list[str]
    sections: dict[str, list[str]]
    """Each item is ``name: text``, or a sentence."""


class Member(NamedTuple):
    """A method or property of a public class."""

    name: str
    value: Any


def parse(docstring: str) -> Doc:
    """Take a docstring in the Google style apart."""
    paragraphs: list[str] = []
    sections: dict[str, list[str]] = {}
    for part in inspect.cleandoc(docstring).split("\n\n"):
        first, _, rest = part.partition("\n")
        if match := _SECTION.match(first):
            sections[match[1]] = _items(textwrap.dedent(rest))
        else:
            paragraphs.append(part)
    return Doc(paragraphs, sections)


def _items(text: str) -> list[str]:
    """The items of a section: a line that is indented belongs to the item before it."""
    items: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and items:
            items[-1] += " " + line.strip()
        else:
            items.append(line.strip())
    return items


def is_error(value: object) -> bool:
    """Whether a public name is an exception."""
    return inspect.isclass(value) and issubclass(value, BaseException)


def public_names(module: ModuleType) -> list[str]:
    """What a module exports, in the order in which a reader meets it: what has methods first."""
    return [name for name in module.__all__ if name != "__version__"]


def members(kind: type) -> Iterator[Member]:
    """The public methods and properties that PairBus defines on a class, or on a base of PairBus's own."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("pairbus."):
            for name, value in vars(base).items():
                if not name.startswith("_") and _is_member(value):
                    found.setdefault(name, value)
    # First what makes the object.
    ways = sorted(found.items(), key=lambda item: not isinstance(item[1], classmethod))
    yield from (Member(name, value) for name, value in ways)


def _is_member(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | classmethod)


def docstring_of(value: Any) -> str:
    """The docstring of a function, property, class method or class, and not one that it inherits."""
    if isinstance(value, classmethod):
        value = value.__func__
    own = vars(value).get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)
    return own or ""


def alias_text(name: str, module: str) -> str:
    """The string below an assignment, which documents a type alias."""
    tree = ast.parse(Path(str(import_module(module).__file__)).read_text())
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            return str(following.value.value) if is_text else ""  # type: ignore[attr-defined]
    return ""


def alias_source(name: str, module: str) -> str:
    """The assignment itself."""
    text = Path(str(import_module(module).__file__)).read_text()
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in statement.targets
        ):
            return ast.get_source_segment(text, statement) or ""
    raise LookupError(name)


# --- signatures -----------------------------------------------------------------------------------


def signature(name: str, function: Any, *, substitutes: dict[str, str] | None = None) -> str:
    """A call as a reader types it, broken into lines when it is long."""
    if isinstance(function, classmethod):
        function = function.__func__
    if hasattr(function, "__wrapped__"):
        return f"{name}(…)  # as in the official client"
    found = inspect.signature(function)
    parameters = [
        parameter for parameter in found.parameters.values() if parameter.name not in ("self", "cls")
    ]
    returns = "" if found.return_annotation in (found.empty, "Self") else f" -> {found.return_annotation}"
    if found.return_annotation == "Self":
        returns = " -> Self"
    before = "async " if inspect.iscoroutinefunction(function) else ""
    text = before + _call(name, parameters, returns)
    for old, new in (substitutes or {}).items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text


def _call(name: str, parameters: list[inspect.Parameter], returns: str) -> str:
    parts: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        parts.append(_parameter(parameter))
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= _LINE_MAX:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {parameter.annotation}"
    if parameter.default is not parameter.empty:
        text += f" = {_default(parameter.default)}"
    return text


def _default(value: object) -> str:
    if isinstance(value, timedelta | datetime):
        return repr(value).removeprefix("datetime.")
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        return f"{value[:3]!r}…"
    if value.__class__.__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
        return "{}"
    return repr(value)


# --- the page -------------------------------------------------------------------------------------


def python_page() -> str:
    """The whole page."""
    names = public_names(pairbus)
    things = [name for name in names if not is_error(getattr(pairbus, name))]
    order = sorted(things, key=_rank)
    own = [name for name in public_names(aio) if getattr(aio, name) is not getattr(pairbus, name)]
    return "".join(
        (
            HEAD,
            CLIENT_HEAD,
            *(_entry(name, pairbus) for name in order),
            ERRORS_HEAD,
            *(_error_row(getattr(pairbus, name)) for name in names if is_error(getattr(pairbus, name))),
            AIO_HEAD,
            *(_entry(name, aio) for name in sorted(own, key=_rank)),
            TESTING_HEAD,
            *(_entry(name, testing) for name in sorted(public_names(testing), key=_rank)),
            FIXTURES_HEAD,
            *_fixture_rows(),
            SPARK_HEAD,
            *(_entry(name, spark) for name in public_names(spark)),
            END,
        )
    )


def _rank(name: str) -> tuple[int, str]:
    first = (
        "PairedServiceBusClient",
        "PairedSender",
        "SendAvailabilityOptions",
        "Trigger",
        "Health",
        "EntityReport",
        "Event",
        "Kind",
        "Listener",
        "Statistics",
        "ParkedSchedule",
        "outcome_of",
        "Namespace",
        "Pair",
        "Queue",
        "Topic",
        "Subscription",
        "FaultSwitchboard",
        "VirtualClock",
    )
    return (first.index(name) if name in first else len(first), name)


def _entry(name: str, module: ModuleType) -> str:
    value = getattr(module, name)
    title = f"\n### `{name}`\n\n"
    if inspect.isfunction(value):
        return title + _code(signature(name, value)) + _text(docstring_of(value))
    if not inspect.isclass(value):
        where = pairbus._MODULES[name]
        return title + _code(alias_source(name, where)) + _text(alias_text(name, where))
    if issubclass(value, enum.Enum):
        lines = "".join(f"- `{one.name}`: `{one.value}`\n" for one in value)
        return title + _text(docstring_of(value)) + "\n" + lines
    asynchronous = module is aio
    substitutes = {
        "Sender": "PairedSender",
        "Official": "azure.servicebus.aio.ServiceBusClient"
        if asynchronous
        else "azure.servicebus.ServiceBusClient",
    }
    head = _code(_constructor(name, value, substitutes)) if has_constructor(value) else ""
    if asynchronous:
        # What does not wait is the same as in the synchronous class, and said there.
        counterpart = getattr(pairbus, name)
        own = [member for member in members(value) if _differs(member, counterpart)]
        link = f"Like [`pairbus.{name}`](#{name.lower()}), with these differences.\n"
        return title + link + "".join(_member(member, substitutes) for member in own)
    return (
        title
        + head
        + _text(docstring_of(value))
        + "".join(_member(member, substitutes) for member in members(value))
    )


def _differs(member: Member, counterpart: type) -> bool:
    return (
        getattr(counterpart, member.name, None) is not member.value
        and inspect.isfunction(member.value)
        and (inspect.iscoroutinefunction(member.value) or hasattr(member.value, "__wrapped__"))
    )


def has_constructor(kind: type) -> bool:
    """Whether programs make it. Senders, reports, events and errors are given to them."""
    return not issubclass(kind, BaseException | enum.Enum) and kind.__name__ not in (
        "PairedSender",
        "EntityReport",
        "Event",
        "Statistics",
        "ParkedSchedule",
        "FaultSwitchboard",
    )


def _constructor(name: str, kind: type, substitutes: dict[str, str]) -> str:
    return signature(name, kind.__init__, substitutes=substitutes).removesuffix(" -> None")  # type: ignore[misc]


def _member(member: Member, substitutes: dict[str, str]) -> str:
    value = member.value
    title = f"\n#### `{member.name}`\n\n"
    if isinstance(value, property):
        kind = inspect.signature(value.fget).return_annotation if value.fget else ""
        writable = "" if value.fset is None else "  # can be set"
        return title + _code(f"{member.name}: {kind}{writable}") + _text(docstring_of(value))
    before = "@classmethod\n" if isinstance(value, classmethod) else ""
    call = before + signature(member.name, value, substitutes=substitutes)
    return title + _code(call) + _text(docstring_of(value))


def _error_row(kind: type[BaseException]) -> str:
    doc = parse(docstring_of(kind))
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
    attributes = "; ".join(_item(item.removesuffix(".")) for item in doc.sections.get("Attributes", []))
    meaning = " ".join(_inline(" ".join(text.split())) for text in doc.paragraphs)
    cells = (f"`{kind.__name__}`", bases, meaning, attributes)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _fixture_rows() -> Iterator[str]:
    for name, fixture in vars(plugin).items():
        if type(fixture).__name__ == "FixtureFunctionDefinition":
            doc = parse(fixture.__doc__ or "")
            scope = fixture._fixture_function_marker.scope
            yield f"| `{name}` | {scope} | {' '.join(_inline(' '.join(p.split())) for p in doc.paragraphs)} |\n"


def _text(docstring: str) -> str:
    doc = parse(docstring)
    parts = [_inline(" ".join(paragraph.split())) + "\n" for paragraph in doc.paragraphs]
    for section, items in doc.sections.items():
        parts.append(f"**{_TITLES[section]}**\n")
        parts.append("".join(f"- {_item(item)}\n" for item in items))
    return "\n".join(parts)


def _item(item: str) -> str:
    """``name: text`` with the name as code; several names may share a text."""
    name, separator, text = item.partition(": ")
    if not separator or not re.fullmatch(r"[\w., ]+", name):
        return _inline(item)
    names = ", ".join(f"`{one}`" for one in name.split(", "))
    return f"{names}: {_inline(text)}"


def _inline(text: str) -> str:
    return text.replace("``", "`")


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n\n"

"""XML of the management API: a bounded parser into plain nodes, and text that is safe to write.

Rule 1: a document type declaration ends the parse, so no entity is ever defined, expanded or fetched.
Rule 2: size, depth, number of elements and attributes are bounded before anything is built from them.
Rule 3: names are compared by namespace, never by prefix: each client has its own prefixes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, final
from xml.parsers import expat

from pairbus.errors import ArgumentError

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
SCHEMA_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"

BODY_BYTES_MAX: Final = 1_048_576
DEPTH_MAX: Final = 24
"""The deepest legal document, a rule's typed value inside a subscription, has 9 levels."""
ELEMENTS_MAX: Final = 20_000
ATTRIBUTES_MAX: Final = 32

_SEPARATOR: Final = " "
_UNWRITABLE: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT: Final = "\ufffd"


@final
@dataclass(slots=True, eq=False)
class Node:
    """One element: its namespace and name, its attributes by qualified name, its text and its children."""

    namespace: str
    name: str
    attributes: dict[str, str]
    text: str = ""
    children: list[Node] = field(default_factory=list)

    def child(self, name: str, namespace: str = SERVICE_BUS) -> Node | None:
        """The one child of this name, or None. Raises ArgumentError when it is given twice."""
        found: Node | None = None
        for node in self.children:
            if node.name == name and node.namespace == namespace:
                if found is not None:
                    raise ArgumentError(f"The element {name} is given twice in {self.name}: give it once.")
                found = node
        return found

    def value(self, name: str) -> str | None:
        """The text of a child, stripped, or None when it is absent, empty or ``nil``."""
        node = self.child(name)
        return None if node is None or node.is_nil else node.text.strip() or None

    @property
    def is_nil(self) -> bool:
        """Whether the element says that it has no value."""
        return self.attributes.get(SCHEMA_INSTANCE + _SEPARATOR + "nil", "").strip() in ("true", "1")

    @property
    def type_name(self) -> str:
        """What ``i:type`` (under whichever prefix) says, without a prefix of its own; empty when absent."""
        text = self.attributes.get(SCHEMA_INSTANCE + _SEPARATOR + "type", "")
        return text.strip().rpartition(":")[2]


def parse(body: bytes) -> Node:
    """The document's root. Raises ArgumentError for whatever is not well-formed, not harmless or too large."""
    if len(body) > BODY_BYTES_MAX:
        raise ArgumentError(
            f"The request's body has {len(body)} bytes: at most {BODY_BYTES_MAX} are allowed."
        )
    return _Builder().build(body)


@final
class _Builder:
    __slots__ = ("_elements", "_open", "_root", "_texts")

    def __init__(self) -> None:
        self._open: list[Node] = []
        self._texts: list[list[str]] = []
        self._root: Node | None = None
        self._elements = 0

    def build(self, body: bytes) -> Node:
        parser = expat.ParserCreate(namespace_separator=_SEPARATOR)
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        try:
            parser.Parse(body, True)
        except (expat.ExpatError, ValueError, LookupError) as error:
            # ValueError and LookupError: an encoding that its declaration does not fit, or nobody knows.
            raise ArgumentError(f"The request's body is not well-formed XML: {error}.") from None
        assert self._root is not None, "expat accepts no document without a root"
        return self._root

    def _doctype(
        self, _name: str, _system_id: str | None, _public_id: str | None, _has_subset: bool | int
    ) -> None:
        raise ArgumentError(
            "The request's body has a document type declaration, which is not accepted: leave it out."
        )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        if self._elements > ELEMENTS_MAX:
            raise ArgumentError(f"The request's body has more than {ELEMENTS_MAX} elements.")
        if len(self._open) >= DEPTH_MAX:
            raise ArgumentError(f"The request's body is nested deeper than {DEPTH_MAX} elements.")
        if len(attributes) > ATTRIBUTES_MAX:
            raise ArgumentError(
                f"An element has {len(attributes)} attributes: at most {ATTRIBUTES_MAX} are allowed."
            )
        namespace, _, local = name.rpartition(_SEPARATOR)
        node = Node(namespace, local, attributes)
        if self._open:
            self._open[-1].children.append(node)
        else:
            self._root = node
        self._open.append(node)
        self._texts.append([])

    def _end(self, _name: str) -> None:
        node = self._open.pop()
        node.text = "".join(self._texts.pop())

    def _characters(self, text: str) -> None:
        self._texts[-1].append(text)


def escaped(text: str) -> str:
    """Text as it may stand between tags or in a quoted attribute; what XML cannot write becomes U+FFFD (M8)."""
    text = _UNWRITABLE.sub(_REPLACEMENT, text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    # A bare carriage return would come back as a line feed.
    return text.replace("\r", "&#13;")


def element(name: str, text: str) -> str:
    return f"<{name}>{escaped(text)}</{name}>"


def flag(name: str, value: bool) -> str:
    """One element with a truth value."""
    return f"<{name}>true</{name}>" if value else f"<{name}>false</{name}>"


def number(name: str, value: int) -> str:
    """One element with an integer."""
    return f"<{name}>{value}</{name}>"

"""SQL actions: what a rule changes in its own copy of a message.

Rule 1: an action never touches the message; it says what to change (B56).
Rule 2: statements run from left to right and see what earlier ones did.
Rule 3: a value takes the type the property had before, where it can; else it keeps its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

from pairbus.amqp.types import Timestamp, Uuid
from pairbus.engine.rules.message_view import MISSING, MessageView
from pairbus.engine.rules.sql import lexer as sql_lexer
from pairbus.engine.rules.sql.declared import parameter_values
from pairbus.engine.rules.sql.lexer import refuse
from pairbus.engine.rules.sql.nodes import Evaluation, Expression, Property
from pairbus.engine.rules.sql.parser import Parser
from pairbus.engine.rules.sql.text import (
    double_from,
    duration_ms_from,
    instant_ms_from,
    integer_from,
    uuid_octets_from,
)
from pairbus.engine.rules.sql.values import (
    BOOLEAN,
    DOUBLE,
    DURATION,
    INSTANT,
    INTEGER,
    INTEGER_MAX,
    INTEGER_MIN,
    NOTHING,
    STRING,
    UUID,
    Duration,
    described,
    kind_of,
    text_of,
)
from pairbus.errors import FilterFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

STATEMENTS_MAX: Final = 32
IDENTIFIER_CHARACTERS_MAX: Final = 128

WRITABLE_SYSTEM_NAMES: Final = frozenset(
    ["contenttype", "correlationid", "label", "messageid", "replyto", "replytosessionid", "sessionid", "to"]
)
IDENTIFIERS: Final = frozenset(["messageid", "sessionid", "replytosessionid"])


@final
class SetUser:
    """Give an application property a value. One that exists in another spelling is overwritten."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: object) -> None:
        self.name = name
        """As the action spells it."""
        self.value = value


@final
@dataclass(slots=True, eq=False)
class RemoveUser:
    """Take an application property away, whatever its spelling."""

    name: str


@final
@dataclass(slots=True, eq=False)
class SetSystem:
    """Give a broker property (canonical name) a text, or None to clear it."""

    name: str
    value: str | None


Change: TypeAlias = SetUser | RemoveUser | SetSystem


@final
@dataclass(slots=True, eq=False)
class Changes:
    """What an action asks for, in order."""

    changes: list[Change]

    def with_user(self, name: str, value: object) -> Changes:
        """The same and one application property more."""
        return Changes([*self.changes, SetUser(name, value)])

    def user_properties(self, before: Mapping[str, object]) -> dict[str, object]:
        """The application properties afterwards. Those that stay keep their spelling and place."""
        after = dict(before)
        spellings: dict[str, list[str]] = {}
        for name in before:
            spellings.setdefault(name.lower(), []).append(name)
        for change in self.changes:
            if isinstance(change, SetUser):
                known = spellings.setdefault(change.name.lower(), [])
                if not known:
                    known.append(change.name)
                after[known[0]] = change.value  # where two spellings exist, rules see the first
            elif isinstance(change, RemoveUser):
                for name in spellings.pop(change.name.lower(), []):
                    del after[name]
        return after

    def system_properties(self) -> dict[str, str | None]:
        """The broker properties to write, by canonical name."""
        return {change.name: change.value for change in self.changes if isinstance(change, SetSystem)}


@final
class ChangedView:
    """A message as it will be after the statements so far."""

    __slots__ = ("_system", "_user", "_view")

    def __init__(self, view: MessageView) -> None:
        self._view = view
        self._user: dict[str, object] = {}
        self._system: dict[str, object] = {}

    def user(self, name: str) -> object:
        """The application property, or MISSING."""
        return self._user[name] if name in self._user else self._view.user(name)

    def system(self, name: str) -> object:
        """The broker property, or MISSING."""
        return self._system[name] if name in self._system else self._view.system(name)

    def new_id(self) -> Uuid:
        return self._view.new_id()

    def change_user(self, name: str, value: object) -> None:
        """From now on the property has this value."""
        self._user[name] = value

    def change_system(self, name: str, value: object) -> None:
        """From now on the property has this value."""
        self._system[name] = value


@final
@dataclass(slots=True, eq=False)
class Statement:
    """``SET property = value`` or, without a value, ``REMOVE property``."""

    target: Property
    written_name: str
    value: Expression | None

    def apply(self, view: ChangedView) -> Change:
        """The change for this message, already visible in the view. Raises FilterFailed."""
        if self.value is None:
            return self._remove(view)
        value = self.value.value(Evaluation(view))
        name = self.target.name
        if self.target.is_system:
            text = system_text(name, value)
            view.change_system(name, text)
            return SetSystem(name, text)
        before = view.user(name)
        if before is not MISSING:
            value = converted(value, kind_of(before))
        view.change_user(name, value)
        return SetUser(self.written_name, value)

    def _remove(self, view: ChangedView) -> Change:
        name = self.target.name
        if self.target.is_system:
            view.change_system(name, MISSING)
            return SetSystem(name, None)
        view.change_user(name, MISSING)
        return RemoveUser(self.written_name)


@final
class SqlAction:
    """Compiled statements; made by :func:`compile_action`."""

    __slots__ = ("_statements", "expression", "parameters")

    def __init__(self, expression: str, parameters: dict[str, object], statements: list[Statement]) -> None:
        self.expression = expression
        self.parameters = parameters
        self._statements = statements

    @property
    def statement_count(self) -> int:
        """How many properties it sets or removes."""
        return len(self._statements)

    def apply(self, view: MessageView) -> Changes:
        """What to change in a copy of this message. Raises FilterFailed; then nothing is to be changed."""
        changed = ChangedView(view)
        return Changes([statement.apply(changed) for statement in self._statements])


def compile_action(expression: str, parameters: Mapping[str, object] | None = None) -> SqlAction:
    """The action of an expression. Raises InvalidRule with the place and what was expected there."""
    given = dict(parameters or {})
    parser = Parser(expression, parameter_values(given))
    statements = [_statement(parser)]
    while parser.token().kind != sql_lexer.END:
        if parser.take_symbol(";") and parser.token().kind == sql_lexer.END:
            break  # one semicolon may end the action
        parser.take_symbol(",")
        if len(statements) == STATEMENTS_MAX:
            raise refuse(parser.token().position, f"at most {STATEMENTS_MAX} statements", "one more")
        statements.append(_statement(parser))
    return SqlAction(expression, given, statements)


def _statement(parser: Parser) -> Statement:
    is_set = parser.take_keyword("SET")
    if not is_set and not parser.take_keyword("REMOVE"):
        raise parser.unexpected("SET or REMOVE")
    position = parser.token().position
    target, written_name = parser.property()
    if target.is_system and target.name not in WRITABLE_SYSTEM_NAMES:
        raise refuse(position, "a system property that actions may write", repr("sys." + written_name))
    if not is_set:
        return Statement(target, written_name, None)
    parser.need_symbol("=")
    return Statement(target, written_name, parser.expression())


def system_text(name: str, value: object) -> str | None:
    """A value as the text of a broker property; null clears it. Raises FilterFailed."""
    if value is None:
        return None
    text = text_of(value)
    if text is None:
        raise FilterFailed(f"sys.{name} holds text and cannot be set to {described(value)}")
    if name in IDENTIFIERS and len(text) > IDENTIFIER_CHARACTERS_MAX:
        raise FilterFailed(
            f"sys.{name} would have {len(text)} characters; at most {IDENTIFIER_CHARACTERS_MAX} are allowed"
        )
    return text


def converted(value: object, kind: int) -> object:
    """The value in the given kind where that is possible, else the value as it is."""
    own = kind_of(value)
    if own in (kind, NOTHING) or kind == NOTHING:
        return value
    result: object = None
    if kind == STRING:
        result = text_of(value)
    elif isinstance(value, str):
        result = _from_text(value, kind)
    elif own in (BOOLEAN, INTEGER, DOUBLE):
        assert isinstance(value, (bool, int, float)), value
        result = _from_number(value, kind)
    return value if result is None else result


def _from_text(text: str, kind: int) -> object:
    if kind == BOOLEAN:
        return {"true": True, "false": False}.get(text.strip().lower())
    if kind == INTEGER:
        number = integer_from(text)
        return number if number is not None and INTEGER_MIN <= number <= INTEGER_MAX else None
    if kind == DOUBLE:
        return double_from(text)
    if kind == INSTANT:
        ms = instant_ms_from(text)
        return None if ms is None else Timestamp(ms)
    if kind == DURATION:
        ms = duration_ms_from(text)
        return None if ms is None else Duration(ms)
    octets = uuid_octets_from(text) if kind == UUID else None
    return None if octets is None else Uuid(octets)


def _from_number(number: bool | int | float, kind: int) -> object:
    if kind == BOOLEAN:
        return number != 0
    if kind == INTEGER:
        # A double with a fraction would lose it: it keeps its own type instead.
        is_whole = not isinstance(number, float) or (
            number.is_integer() and INTEGER_MIN <= number <= INTEGER_MAX
        )
        return int(number) if is_whole else None
    return float(number) if kind == DOUBLE else None

"""SQL actions: statements, conversion, what may be written."""

from __future__ import annotations

import pytest

from pairbus.amqp.types import Decimal64, Timestamp, Uuid
from pairbus.engine.rules.message_view import MappingView
from pairbus.engine.rules.sql.action import (
    STATEMENTS_MAX,
    Changes,
    RemoveUser,
    SetSystem,
    SetUser,
    compile_action,
)
from pairbus.engine.rules.sql.values import Duration
from pairbus.errors import FilterFailed, InvalidRule

UUID = Uuid(bytes(range(16)))
USER: dict[str, object] = {
    "Color": "red",
    "size": 10,
    "price": 2.5,
    "flag": True,
    "nothing": None,
    "id": UUID,
    "at": Timestamp(0),
    "span": Duration(0),
    "data": b"x",
    "decimal": Decimal64(bytes(8)),
}


def changes_of(expression: str, parameters: dict[str, object] | None = None) -> Changes:
    view = MappingView(USER, {"label": "news", "messageid": "m" * 100}, ids=[UUID])
    return compile_action(expression, parameters).apply(view)


def user_after(expression: str) -> dict[str, object]:
    return changes_of(expression).user_properties(USER)


def test_set_creates_and_overwrites_in_order() -> None:
    after = user_after("SET new = size + 1; SET COLOR = 'blue', SET new = new * 2 set Last=new")

    assert after["new"] == 22
    assert after["Color"] == "blue"
    assert after["Last"] == 22
    assert next(iter(after)) == "Color"
    assert "COLOR" not in after


def test_statements_see_what_earlier_ones_did() -> None:
    changes = changes_of(
        "SET a = color; REMOVE color; SET b = color; SET sys.Label = a + '!'; SET c = sys.Label"
    )

    after = changes.user_properties(USER)
    assert after["a"] == "red"
    assert after["b"] is None
    assert after["c"] == "red!"
    assert "Color" not in after
    assert changes.system_properties() == {"label": "red!"}


def test_remove_takes_every_spelling_and_a_missing_property_in_peace() -> None:
    changes = changes_of("REMOVE color REMOVE missing;")

    assert [type(change) for change in changes.changes] == [RemoveUser, RemoveUser]
    assert changes.user_properties({"Color": 1, "COLOR": 2, "other": 3}) == {"other": 3}
    assert changes.with_user("Color", 5).user_properties({"COLOR": 1}) == {"Color": 5}


def test_remove_of_a_system_property_clears_it() -> None:
    changes = changes_of("REMOVE sys.Label; SET a = sys.Label")

    assert changes.system_properties() == {"label": None}
    assert changes.user_properties({})["a"] is None


@pytest.mark.parametrize(
    ("statement", "name", "value"),
    [
        ("SET color = 5", "Color", "5"),
        ("SET color = flag", "Color", "True"),
        ("SET color = id", "Color", "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("SET color = at", "Color", "1970-01-01T00:00:00.000Z"),
        ("SET color = span", "Color", "PT0S"),
        ("SET color = NULL", "Color", None),
        ("SET color = data", "Color", b"x"),
        ("SET size = '42'", "size", 42),
        ("SET size = '4.2'", "size", "4.2"),
        ("SET size = '99999999999999999999'", "size", "99999999999999999999"),
        ("SET size = 3.0", "size", 3),
        ("SET size = 3.5", "size", 3.5),
        ("SET size = 1E300", "size", 1e300),
        ("SET size = TRUE", "size", 1),
        ("SET size = id", "size", UUID),
        ("SET price = 3", "price", 3.0),
        ("SET price = '1.5e1'", "price", 15.0),
        ("SET price = 'x'", "price", "x"),
        ("SET flag = 'False'", "flag", False),
        ("SET flag = 0", "flag", False),
        ("SET flag = 0.5", "flag", True),
        ("SET flag = 'maybe'", "flag", "maybe"),
        ("SET nothing = 5", "nothing", 5),
        ("SET id = '10010203-0405-0607-0809-0a0b0c0d0e0f'", "id", Uuid(b"\x10" + bytes(range(1, 16)))),
        ("SET id = 'short'", "id", "short"),
        ("SET id = 5", "id", 5),
        ("SET at = '1970-01-01T00:00:01Z'", "at", Timestamp(1000)),
        ("SET at = 'noon'", "at", "noon"),
        ("SET span = 'PT1S'", "span", Duration(1000)),
        ("SET span = 'long'", "span", "long"),
        ("SET data = 'text'", "data", "text"),
        ("SET decimal = 5", "decimal", 5),
        ("SET new = newid()", "new", UUID),
        ("SET new = -price", "new", -2.5),
        ("SET new = TRUE", "new", True),
    ],
)
def test_set_keeps_the_type_of_the_property_where_it_can(statement: str, name: str, value: object) -> None:
    after = user_after(statement)

    assert after[name] == value
    assert type(after[name]) is type(value)


@pytest.mark.parametrize(
    "name",
    ["Label", "To", "ReplyTo", "CorrelationId", "ContentType", "SessionId", "ReplyToSessionId", "MessageId"],
)
def test_writable_system_properties_take_text(name: str) -> None:
    changes = changes_of(f"SET sys.{name} = 5")

    (change,) = changes.changes
    assert isinstance(change, SetSystem)
    assert (change.name, change.value) == (name.lower(), "5")


def test_subject_is_the_label() -> None:
    assert changes_of("SET sys.Subject = NULL").system_properties() == {"label": None}


def test_parameters_serve_actions_too() -> None:
    assert changes_of("SET a = @X", {"@x": 5}).user_properties({}) == {"a": 5}


@pytest.mark.promise("B58")
@pytest.mark.parametrize(
    "expression",
    [
        "SET a = 1/0",
        "SET a = color - 1",
        "SET sys.Label = data",
        "SET sys.MessageId = sys.MessageId + sys.MessageId",
    ],
)
def test_action_fails_on_values_it_cannot_work_on(expression: str) -> None:
    with pytest.raises(FilterFailed):
        changes_of(expression)


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("", 1),
        ("a = 1", 1),
        ("SET", 4),
        ("SET a", 6),
        ("SET a =", 8),
        ("SET a = 1;;", 11),
        ("SET a = 1,", 11),
        ("SET a = 1 b = 2", 11),
        ("SET a = (b > 1)", 9),
        ("SET sys.TimeToLive = 1", 5),
        ("SET sys.Nonsense = 1", 9),
        ("SET a = sys.Nonsense", 13),
        ("REMOVE sys.EnqueuedTimeUtc", 8),
        ("REMOVE 5", 8),
    ],
)
def test_malformed_action_is_refused_with_its_place(expression: str, position: int) -> None:
    with pytest.raises(InvalidRule, match=f"at character {position}:"):
        compile_action(expression)


def test_action_may_have_32_statements_and_no_more() -> None:
    assert len(changes_of(";".join(["SET a = 1"] * STATEMENTS_MAX)).changes) == STATEMENTS_MAX
    with pytest.raises(InvalidRule, match="at most 32 statements"):
        compile_action(";".join(["SET a = 1"] * (STATEMENTS_MAX + 1)))


@pytest.mark.promise("B56")
def test_an_action_leaves_the_message_alone() -> None:
    before = dict(USER)

    changes = changes_of("SET color = 'blue'; REMOVE size")
    changes.user_properties(USER)

    assert before == USER
    assert isinstance(changes.changes[0], SetUser)

"""One table of columns: every row of a message comes from it, and no module lists columns of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from azure.servicebus import ServiceBusReceivedMessage

from pairbus.amqp.message.scan import scan
from pairbus.amqp.message.whole import PROPERTY_FIELDS, encode_message
from pairbus.amqp.types import Uuid
from pairbus.model.message import SCHEDULED, Extra, Message
from pairbus.model.message_row import (
    COLUMNS,
    COMMAND_ROW,
    EXPORT_ROW,
    PAGE_ROW,
    SENT_NAMES,
    SPARK_ROW,
    restore_extra,
    stored_values,
)
from pairbus.server.offline.export import message_row
from pairbus.spark.connector.schema import row_of
from pairbus.web.messages import shown_parts
from tests.attributes import attribute_names

SOURCE = Path(__file__).parents[3] / "src" / "pairbus"
TABLE = SOURCE / "model" / "message_row.py"
NAMES = {name for column in COLUMNS for name in (column.name, *column.aliases)}
NOT_A_ROW = {
    SOURCE / "amqp" / "message" / "scan.py",  # slots of an object
    SOURCE / "amqp" / "message" / "whole.py",  # fields of a section of AMQP
    SOURCE / "model" / "message.py",  # slots of an object
}
LISTED_MAX = 4
"""Columns that one literal may name: a key, a few to show first."""


def listings(tree: ast.AST) -> Iterator[set[str]]:
    """The names in each literal that could be a list of columns: a dict, a tuple, a list, a set, a schema as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            items = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            items = list(node.elts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split()
            schema = re.findall(r"(\w+) (?:string|long|binary|timestamp)\b", node.value)
            yield set(words) if all(map(str.isidentifier, words)) else set(schema)
            continue
        else:
            continue
        yield {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}


def test_no_other_module_lists_the_columns_of_a_message() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {', '.join(sorted(names & NAMES))}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path != TABLE and path not in NOT_A_ROW
        for names in listings(ast.parse(path.read_text()))
        if len(names & NAMES) > LISTED_MAX
    ]

    assert not found, "take these from pairbus.model.message_row:\n" + "\n".join(found)


def test_a_listing_of_columns_is_noticed_in_every_form() -> None:
    names = ("entity", "sequence_number", "message_id", "session_id", "subject")
    forms = (
        repr(names),
        repr(list(names)),
        repr(dict.fromkeys(names, "text")),
        repr(", ".join(f"{name} string" for name in names)),
        repr(" ".join(names)),
    )

    assert all(set(names) in listings(ast.parse(form)) for form in forms)


def test_every_place_that_the_table_names_exists() -> None:
    message, extra = Message(1, 2, 3, 4, None), Extra()

    for column in COLUMNS:
        assert not column.stored or hasattr(message, column.stored), column
        assert not column.extra or hasattr(extra, column.extra), column
        assert not column.properties or column.properties in PROPERTY_FIELDS, column
        assert not column.received or column.received in dir(ServiceBusReceivedMessage), column
        assert not (column.stored and column.extra), column


def test_every_column_stands_in_a_row() -> None:
    rows = (SPARK_ROW, EXPORT_ROW, COMMAND_ROW, PAGE_ROW)
    shown = {column.name for row in rows for column in row.values()}

    # A row of the Spark sink may name its destination; no message has one.
    assert {column.name for column in COLUMNS} - shown == {"path"}
    assert set(SENT_NAMES) < set(SPARK_ROW)


def test_a_stored_message_comes_back_from_its_row() -> None:
    message = Message(7, 1_000, 0, 99, "s")
    message.state = SCHEDULED
    message.extra = Extra()
    message.extra.scheduled_at = 5_000
    message.extra.dead_letter_reason = "Tired"
    message.extra.hops = 2

    values = stored_values(EXPORT_ROW, message)

    assert (values["state"], values["expires_at"], values["scheduled_time"]) == ("scheduled", None, 5_000)
    restored = restore_extra(EXPORT_ROW, values)
    assert all(
        getattr(restored, name) == getattr(message.extra, name) for name in attribute_names(Extra) or ()
    )


def test_a_row_keeps_every_rare_fact_of_a_stored_message() -> None:
    assert {column.extra for column in EXPORT_ROW.values() if column.extra} == set(
        attribute_names(Extra) or ()
    )


def test_a_message_id_of_type_uuid_is_the_same_text_in_every_row() -> None:
    shown = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    payload = encode_message(message_id=Uuid(bytes(range(16))), body=b"x", body_kind="data")
    message = Message(7, 1_000, 0, len(payload), None)

    assert shown_parts(payload)["message_id"] == shown
    assert message_row("orders", 4, message, scan(payload).blob)["message_id"] == shown
    assert dict(zip(SPARK_ROW, row_of(payload, "orders"), strict=True))["message_id"] == shown

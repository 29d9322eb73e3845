"""Tables of the command line: whole where they fit, a paragraph for each row on a narrow terminal."""

from __future__ import annotations

import pytest

from pairbus.cli.kit.output import table_lines

QUEUES: list[dict[str, object]] = [
    {
        "name": "contoso/x-servicebus-transfer/0",
        "messages": 120_000,
        "set_aside": 0,
        "owner": "contoso.example",
    },
    {"name": "contoso/x-servicebus-transfer/1", "messages": None, "set_aside": 3, "owner": ""},
]
COLUMNS = ("name", "messages", "set_aside", "owner")


@pytest.mark.parametrize("width", [None, 120])
def test_a_table_that_fits_is_a_table(width: int | None) -> None:
    head, first, second = table_lines(QUEUES, COLUMNS, width)

    assert head.split() == ["NAME", "MESSAGES", "SET", "ASIDE", "OWNER"]
    assert first.split() == ["contoso/x-servicebus-transfer/0", "120000", "0", "contoso.example"]
    assert second.index("3") == first.index(" 0 ") + 1


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_gets_a_paragraph_for_each_row(width: int) -> None:
    lines = table_lines(QUEUES, COLUMNS, width)

    assert lines == [
        "contoso/x-servicebus-transfer/0",
        "  messages:  120000",
        "  set aside: 0",
        "  owner:     contoso.example",
        "contoso/x-servicebus-transfer/1",
        "  set aside: 3",
    ]
    assert max(map(len, lines)) <= width


def test_no_rows_are_no_table() -> None:
    assert table_lines([], (), 60) == []

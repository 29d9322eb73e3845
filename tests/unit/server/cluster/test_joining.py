"""The connection string of a namespace that several nodes serve."""

from __future__ import annotations

import pytest

from pairbus.errors import StoreUnavailable, UsageError
from pairbus.sdk.connection_string import parse_connection_string
from pairbus.server.cluster.joining import joined_connection_string
from pairbus.server.cluster.status import STALE_MS
from pairbus.storage.table.ports import NodeEntry


class Settings:
    """See ``server.cluster.ports.SettingTable``."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    def get(self, name: str) -> bytes | None:
        return self._key

    def put(self, name: str, value: bytes) -> None: ...

    def settle(self, name: str, value: bytes) -> bytes:
        return value

    def close(self) -> None: ...


def node(name: str, address: str, age_ms: int = 0) -> NodeEntry:
    return NodeEntry(node=name, address=address, state="idle", version="1", age_ms=age_ms)


A, B = node("a", "node-1.example.com:5671"), node("b", "node-2.example.com:5671")
GONE = node("c", "node-3.example.com:5671", STALE_MS)


def test_all_nodes_that_report_are_listed() -> None:
    text, names, is_served = joined_connection_string("contoso", [A, B, GONE], Settings(b"key"))
    parts = parse_connection_string(text, "given")
    assert parts.hosts == (A.address, B.address)
    assert (parts.key, parts.namespace, parts.is_emulator) == ("key", "contoso", False)
    assert (names, is_served) == (["a", "b"], True)


def test_one_node_can_be_chosen_and_one_that_is_gone_is_named_as_such() -> None:
    text, names, is_served = joined_connection_string("contoso", [A, B, GONE], Settings(b"key"), "c")
    assert parse_connection_string(text, "given").hosts == (GONE.address,)
    assert (names, is_served) == (["c"], False)
    with pytest.raises(UsageError, match="no node 'd'; it has: a, b, c"):
        joined_connection_string("contoso", [A, B, GONE], Settings(b"key"), "d")


def test_nodes_of_one_machine_are_reached_in_plain_text_unless_another_machine_takes_part() -> None:
    local = node("l", "127.0.0.1:5672")
    text, _, _ = joined_connection_string("contoso", [local, node("m", "127.0.0.1:5673")], Settings(b"key"))
    assert parse_connection_string(text, "given").hosts == ("127.0.0.1:5672", "127.0.0.1:5673")
    assert "UseDevelopmentEmulator=true" in text
    text, names, _ = joined_connection_string("contoso", [local, A], Settings(b"key"))
    assert names == ["a"]
    assert "UseDevelopmentEmulator" not in text


def test_a_namespace_that_was_never_served_has_none() -> None:
    with pytest.raises(StoreUnavailable, match="never served"):
        joined_connection_string("contoso", [A], Settings(None))

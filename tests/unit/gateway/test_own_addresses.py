"""Which requests mean the broker itself, and which an entity of the same name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import pairbus
from pairbus.gateway.own_addresses import OWN_ADDRESSES, own_address
from pairbus.model.names import check_entity_name

ROOMS = ("gateway", "server", "web")
OTHERS = {
    "/gone",
    "/proc/self/statm",
    "/Rules",
    "/Rules/",
    "/rules/",
    "/Subscriptions",
    "/subscriptions/",
    "/owner",
    "/metrics",
}
"""Ends of addresses, and what is no address of HTTP."""
OF_THE_PAIRS_PAGE = "pair_page.py"
"""Served at an address of its own, where there are no entities."""


@pytest.mark.parametrize("address", OWN_ADDRESSES)
def test_a_plain_reading_means_the_broker(address: str) -> None:
    for method in ("GET", "HEAD"):
        assert own_address(method, address) == address
        assert own_address(method, f"{address}?x=1&not-api-version=2021-05") == address


@pytest.mark.parametrize("address", OWN_ADDRESSES)
def test_a_version_or_another_method_means_the_entity(address: str) -> None:
    check_entity_name(address.removeprefix("/"))
    for method in ("PUT", "DELETE", "POST"):
        assert own_address(method, address) == ""
    for query in ("api-version=2021-05", "enrich=false&api-version=2021-05", "Api-Version="):
        assert own_address("GET", f"{address}?{query}") == ""


@pytest.mark.parametrize("target", ["/", "/q", "/Health", "/health/", "//health", "/health/x", "/%68ealth"])
def test_other_targets_are_no_addresses_of_the_broker(target: str) -> None:
    assert own_address("GET", target) == ""


def test_every_address_of_the_broker_that_may_be_a_name_is_in_the_table() -> None:
    root = Path(pairbus.__file__).parent
    found = {
        node.value
        for room in ROOMS
        for file in (root / room).rglob("*.py")
        if file.name != OF_THE_PAIRS_PAGE
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_address(node.value)
    }
    assert found - OTHERS - set(OWN_ADDRESSES) == set()


def _is_address(text: str) -> bool:
    return re.fullmatch(r"/[A-Za-z0-9][A-Za-z0-9._/-]*", text) is not None and not text.endswith(".")

"""What a node announces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pairbus.sdk.connection_string import parse_connection_string
from pairbus.server.cluster.readiness import KEY_SECONDS, Readiness
from pairbus.server.config.options import Options


def new_readiness(tmp_path: Path, advertised: str) -> Readiness:
    settings: Any = None
    made = Readiness(Options(data=tmp_path, namespace="contoso"), "node-1", settings)
    made.addresses = (("0.0.0.0", 5671), ("0.0.0.0", 5671))
    made.advertised = advertised
    return made


@pytest.mark.promise("M14")
@pytest.mark.parametrize(
    ("advertised", "host", "is_plain"),
    [
        ("node-1.example.com:5671", "node-1.example.com:5671", False),
        ("10.0.0.7:5999", "10.0.0.7:5999", False),
        ("127.0.0.1:5671", "127.0.0.1:5671", True),
        ("localhost:5671", "127.0.0.1:5671", True),
    ],
)
async def test_a_node_that_other_machines_reach_announces_TLS(
    tmp_path: Path, advertised: str, host: str, is_plain: bool
) -> None:
    """Plain text works while the node is the owner, and not while it relays to another machine: what works always is announced."""
    readiness = new_readiness(tmp_path, advertised)
    readiness.announce("a2V5")
    ready = await readiness.wait()
    parts = parse_connection_string(ready.connection_string, "announced")
    assert (parts.host, parts.is_emulator) == (host, is_plain)
    assert ready.ca_file == str(tmp_path / "tls" / "ca.pem")


async def test_what_is_true_already_is_not_announced_again(tmp_path: Path) -> None:
    readiness = new_readiness(tmp_path, "127.0.0.1:5671")
    told: list[object] = []
    readiness.changed = told.append
    for key in ("old", "old", "new", "new"):
        readiness.announce(key)
    assert len(told) == 1
    assert "SharedAccessKey=new" in (await readiness.wait()).connection_string


async def test_a_relay_looks_at_the_key_when_the_owner_changed_and_from_time_to_time(tmp_path: Path) -> None:
    readiness = new_readiness(tmp_path, "127.0.0.1:5671")
    readiness.not_before = 10.0
    assert not readiness.is_look_due(9.0, is_new=True), "the owner's certificate may not have its name yet"
    assert readiness.is_look_due(10.0, is_new=False)
    assert not readiness.is_look_due(11.0, is_new=False)
    assert readiness.is_look_due(11.0, is_new=True)
    assert readiness.is_look_due(11.0 + KEY_SECONDS, is_new=False)

"""A connection string with several addresses: how it is read, merged, and used in turn."""

from __future__ import annotations

import pytest

from pairbus.errors import SameNamespaceError, UsageError
from pairbus.pairing.naming import PrimaryIdentity, check_different
from pairbus.sdk.addresses import Addresses
from pairbus.sdk.connection_string import merge_connection_strings, parse_connection_string

KEY = "SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;Namespace=contoso"


@pytest.mark.parametrize(
    ("endpoint", "hosts"),
    [
        ("sb://node-1:5671/", ("node-1:5671",)),
        ("sb://node-1:5671,node-2:5671/", ("node-1:5671", "node-2:5671")),
        ("sb://node-1, node-2:7000 /", ("node-1", "node-2:7000")),
        ("sb://node-1,node-1/", ("node-1",)),
        ("sb://[::1]:5671,127.0.0.1:5671", ("[::1]:5671", "127.0.0.1:5671")),
    ],
)
def test_an_endpoint_may_list_addresses(endpoint: str, hosts: tuple[str, ...]) -> None:
    parts = parse_connection_string(f"Endpoint={endpoint};{KEY}", "primary")
    assert parts.hosts == hosts
    assert parts.host == hosts[0]
    first = parse_connection_string(parts.first_text, "primary")
    assert first.hosts == hosts[:1]
    assert (first.key, first.namespace) == ("c2VjcmV0", "contoso")


def test_an_empty_address_is_refused() -> None:
    with pytest.raises(UsageError, match="lists an empty address, in 'node-1,'"):
        parse_connection_string(f"Endpoint=sb://node-1,/;{KEY}", "primary")


def test_connection_strings_of_one_namespace_become_one() -> None:
    one, two = (f"Endpoint=sb://{host}/;{KEY}" for host in ("contoso", "node-2:7000,node-3"))
    merged = merge_connection_strings([f"Namespace=contoso;{one}", two], "primary")
    assert parse_connection_string(merged, "primary").hosts == ("contoso", "node-2:7000", "node-3")
    assert merged.startswith("Namespace=contoso;Endpoint=sb://contoso,node-2:7000,node-3/")
    assert merge_connection_strings(one, "primary") == one


def test_connection_strings_of_different_namespaces_are_refused_without_showing_a_key() -> None:
    one = f"Endpoint=sb://node-1/;{KEY}"
    other = "Endpoint=sb://node-2/;SharedAccessKeyName=root;SharedAccessKey=b3RoZXI=;Namespace=contoso"
    with pytest.raises(UsageError, match="node-1 and node-2 differ in sharedaccesskey:") as caught:
        merge_connection_strings([one, other], "primary")
    assert "b3RoZXI" not in str(caught.value)
    with pytest.raises(UsageError, match="list of primary connection strings is empty"):
        merge_connection_strings([], "primary")


def test_an_address_that_failed_is_left_once_however_many_notice() -> None:
    addresses = Addresses(["a", "b", "c"], uses_tls=True)
    for _ in range(3):
        addresses.failed("a")
    assert addresses.current == "b"
    addresses.failed("b")
    addresses.failed("c")
    assert addresses.current == "a"


def test_requests_go_to_the_address_in_use() -> None:
    url = "https://node-1/$Resources/queues?api-version=2021-05"
    assert Addresses(["x"], uses_tls=True).url_at("node-2:5671", url) == (
        "https://node-2:5671/$Resources/queues?api-version=2021-05"
    )
    assert Addresses(["x"], uses_tls=False).url_at("b", "https://a").startswith("http://b/")


def test_every_address_of_a_primary_names_it() -> None:
    identity = PrimaryIdentity.make(("node-1:5671", "node-2:7000"), ["old-name"])
    assert identity.address == "node-1"
    assert all(identity.accepts(host) for host in ("node-1", "node-2:7000", "old-name", ""))
    assert not identity.accepts("node-3")
    with pytest.raises(SameNamespaceError):
        check_different(["a:5671", "b:5671"], ["c:5671", "b:5671"])

from __future__ import annotations

import pytest

from pairbus import NamespaceNameUnknownError, SameNamespaceError, UsageError
from pairbus.pairing import naming
from pairbus.sdk import connection_string

KEY = "SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"


def test_a_cloud_host_names_itself_by_its_first_label() -> None:
    parsed = connection_string.parse_connection_string(
        f"Endpoint=sb://contoso.servicebus.windows.net/;{KEY}", "primary"
    )

    assert connection_string.namespace_name(parsed.host, parsed.namespace) == "contoso"


def test_our_broker_is_named_by_its_connection_string() -> None:
    text = f"Endpoint=sb://127.0.0.1:5672/;{KEY};UseDevelopmentEmulator=true;Namespace=contoso"
    parsed = connection_string.parse_connection_string(text, "primary")

    assert (parsed.host, parsed.namespace, parsed.is_emulator) == ("127.0.0.1:5672", "contoso", True)
    assert connection_string.namespace_name(parsed.host, parsed.namespace) == "contoso"


def test_what_is_given_wins() -> None:
    assert connection_string.namespace_name("contoso.servicebus.windows.net", "other", "mine") == "mine"


@pytest.mark.parametrize(
    "host", ["localhost:5672", "broker.example.com", "10.0.0.1", "servicebus.windows.net"]
)
def test_the_first_label_of_any_other_host_is_never_taken(host: str) -> None:
    with pytest.raises(
        NamespaceNameUnknownError,
        match=r"give primary_namespace=<name>, or, with from_connection_strings, add",
    ):
        connection_string.namespace_name(host)


def test_errors_never_show_the_key() -> None:
    with pytest.raises(UsageError) as caught:
        connection_string.parse_connection_string(KEY, "secondary")

    assert "c2VjcmV0" not in str(caught.value)
    assert "c2VjcmV0" not in repr(
        connection_string.parse_connection_string(f"Endpoint=sb://a/;{KEY}", "primary")
    )


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("Contoso.servicebus.windows.net", "contoso.servicebus.windows.net."),
        ("sb://a.b/", "A.B"),
        ("a.b:5671", "a.b"),
        ("localhost:5699", "127.0.0.1:5699"),
        ("127.0.0.1:5699", "[::1]:5699"),
        ("[::1]", "localhost"),
        ("[2001:DB8::1]:5671", "[2001:db8:0:0::1]"),
    ],
)
def test_the_same_host_is_known_however_it_is_written(one: str, two: str) -> None:
    with pytest.raises(SameNamespaceError):
        naming.check_different(connection_string.normal_host(one), connection_string.normal_host(two))


def test_two_ports_of_one_host_are_two_namespaces() -> None:
    naming.check_different(
        connection_string.normal_host("localhost:5672"), connection_string.normal_host("localhost:5673")
    )


@pytest.mark.parametrize(
    ("host", "identity"),
    [
        ("Contoso.servicebus.windows.net", "contoso.servicebus.windows.net"),
        ("sb://broker.internal:5672/", "broker.internal"),
        ("broker.internal:5671", "broker.internal"),
        ("broker.internal:5699", "broker.internal:5699"),
        ("127.0.0.1:40001", "localhost:40001"),
        ("[::1]:40001", "localhost:40001"),
        ("[2001:db8::1]:40001", "[2001:db8::1]:40001"),
    ],
)
def test_a_broker_has_one_identity_however_its_address_is_written(host: str, identity: str) -> None:
    assert naming.identity_of(host) == identity
    assert naming.PrimaryIdentity.make("elsewhere", [host]).accepts(identity)
    assert not naming.PrimaryIdentity.make("elsewhere").accepts(identity)
    assert naming.PrimaryIdentity.make("elsewhere").accepts(""), "nothing is said: messages of older clients"


def test_aliases_are_a_list_of_addresses() -> None:
    with pytest.raises(UsageError, match="primary_aliases"):
        naming.PrimaryIdentity.make("a", "localhost")
    with pytest.raises(UsageError, match="names no host"):
        naming.PrimaryIdentity.make("a", [""])


@pytest.mark.parametrize(
    "alias",
    [
        "a:b:c",
        "h:99999",
        "h:0",
        "h:x",
        "h:\u0665",
        "two hosts",
        "a,b",
        "-h",
        "h-",
        "user@h",
        "[a:b:c]:1",
    ],
)
def test_an_alias_that_can_be_no_address_is_refused(alias: str) -> None:
    with pytest.raises(UsageError, match="can be no address"):
        naming.PrimaryIdentity.make("a", [alias])


def test_backlog_queues_are_named_by_primary_and_index() -> None:
    assert naming.backlog_queue("contoso", 3) == "contoso/x-servicebus-transfer/3"
    assert naming.backlog_index("contoso", "contoso/x-servicebus-transfer/12") == 12
    assert naming.backlog_index("contoso", "contoso/x-servicebus-transfer/007") is None
    assert naming.backlog_index("contoso", "contoso2/x-servicebus-transfer/1") is None
    assert naming.backlog_index("contoso", "orders") is None


@pytest.mark.parametrize("path", ["Orders", "orders", "/orders", "orders/", "/ORDERS/"])
def test_an_entity_has_one_key_however_it_is_written(path: str) -> None:
    assert naming.entity_key(path) == "orders"


@pytest.mark.parametrize(
    ("found", "missing"),
    [((), []), ((0, 1, 2), []), ((0, 2, 5), [1, 3, 4]), ((0, 12), []), ((1,), [0])],
)
def test_a_backlog_queue_is_missing_when_a_later_one_is_there(
    found: tuple[int, ...], missing: list[int]
) -> None:
    names = [naming.backlog_queue("p", index).upper() for index in found]
    assert naming.missing_queues("p", names, 10) == [naming.backlog_queue("p", index) for index in missing]

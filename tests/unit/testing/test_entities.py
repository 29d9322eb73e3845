from __future__ import annotations

from datetime import timedelta
from xml.etree import ElementTree

import pytest

from pairbus.errors import UsageError
from pairbus.testing.entities import Queue, Subscription, Topic, configuration, duration_text

SERVICE_BUS = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(seconds=5), "PT5S"),
        (timedelta(minutes=1), "PT60S"),
        (timedelta(days=7), "P7DT0S"),
        (timedelta(days=1, milliseconds=250), "P1DT0.250000S"),
    ],
)
def test_durations_are_written_as_iso_8601(value: timedelta, text: str) -> None:
    assert duration_text(value) == text


def test_a_queue_by_name_alone_sets_nothing() -> None:
    document = configuration("contoso", ["orders"])

    assert document == {
        "UserConfig": {
            "Namespaces": [
                {"Name": "contoso", "Queues": [{"Name": "orders", "Properties": {}}], "Topics": []}
            ]
        }
    }


def test_configuration_carries_settings_and_what_else_is_declared() -> None:
    queue = Queue("sessions", requires_session=True, lock_duration=timedelta(seconds=30))

    document = configuration("contoso", [queue], further={"Topics": [{"Name": "news"}]})

    entry = document["UserConfig"]["Namespaces"][0]  # type: ignore[index]
    assert entry["Queues"][0]["Properties"] == {"LockDuration": "PT30S", "RequiresSession": True}
    assert entry["Topics"] == [{"Name": "news"}]


def test_entry_is_xml_in_schema_order_with_foreign_text_inert() -> None:
    queue = Queue("q", user_metadata="<&>", requires_session=False, lock_duration="PT5S")

    description = next(ElementTree.fromstring(queue.entry()).iter(f"{SERVICE_BUS}QueueDescription"))

    assert [(child.tag.removeprefix(SERVICE_BUS), child.text) for child in description] == [
        ("LockDuration", "PT5S"),
        ("RequiresSession", "false"),
        ("UserMetadata", "<&>"),
    ]


def test_topics_are_declared_with_subscriptions_and_rules() -> None:
    large = Subscription("large", rules={"large": "size > 40"}, max_delivery_count=3)
    document = configuration("contoso", [], ["plain", Topic("events", subscriptions=["audit", large])])

    [namespace] = document["UserConfig"]["Namespaces"]  # type: ignore[index]
    plain, events = namespace["Topics"]
    assert plain == {"Name": "plain", "Properties": {}, "Subscriptions": []}
    assert [one["Name"] for one in events["Subscriptions"]] == ["audit", "large"]
    assert events["Subscriptions"][1]["Properties"] == {"MaxDeliveryCount": 3}
    assert events["Subscriptions"][1]["Rules"][0]["Properties"]["SqlFilter"] == {"SqlExpression": "size > 40"}


def test_a_whole_document_of_the_emulator_is_taken_under_the_namespaces_name() -> None:
    whole = {
        "UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "a"}]}], "Logging": {}}
    }

    document = configuration("contoso", ["b"], further=whole)

    assert document["UserConfig"]["Logging"] == {}  # type: ignore[index]
    [namespace] = document["UserConfig"]["Namespaces"]  # type: ignore[index]
    assert namespace["Name"] == "contoso"
    assert [queue["Name"] for queue in namespace["Queues"]] == ["a", "b"]
    assert whole["UserConfig"]["Namespaces"][0]["Name"] == "sbemulatorns"  # type: ignore[index]


@pytest.mark.parametrize("namespaces", [[], [{}, {}], ["a"], 7])
def test_a_document_without_one_namespace_is_refused(namespaces: object) -> None:
    with pytest.raises(UsageError, match="one namespace"):
        configuration("contoso", [], further={"UserConfig": {"Namespaces": namespaces}})


def test_a_document_without_namespaces_is_refused() -> None:
    with pytest.raises(UsageError, match="one namespace"):
        configuration("contoso", [], further={"UserConfig": {"Namespace": [{"Queues": [{"Name": "a"}]}]}})

from __future__ import annotations

import pytest

from pairbus.errors import UsageError
from pairbus.spark.options import Access, parse_sink, parse_source

CONNECTION = "Endpoint=sb://example/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"
BASE = {"connectionstring": CONNECTION, "queue": "orders"}


def test_a_source_has_the_documented_defaults() -> None:
    stream, batch = parse_source(BASE, is_stream=True), parse_source(BASE, is_stream=False)

    assert (stream.mode, batch.mode) == ("consume", "browse")
    assert (stream.messages_max, stream.bytes_max, stream.starting) == (10_000, 64 * 1024 * 1024, "earliest")


def test_names_are_read_in_any_letter_case() -> None:
    assert (
        parse_source(
            {"CONNECTIONstring": CONNECTION, "QUEUE": "q", "maxmessagespertrigger": "7"}, is_stream=True
        ).messages_max
        == 7
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mode": "steal"}, ("mode", "'steal'", "browse, consume")),
        ({"maxMessagesPerTrigger": "0"}, ("maxMessagesPerTrigger", "'0'", "1 to")),
        ({"maxMessagesPerTrigger": "many"}, ("maxMessagesPerTrigger", "'many'")),
        ({"startingSequence": "soon"}, ("startingSequence", "'soon'", "earliest, latest")),
        ({"subQueue": "dlq"}, ("subQueue", "'dlq'", "deadletter, transferdeadletter")),
        ({"partitions": "-1"}, ("partitions", "'-1'")),
        ({"que": "orders"}, ("'que'", "queue")),
        ({"topic": "t"}, ("queue", "topic", "subscription")),
        ({"queue": ""}, ("queue", "topic", "subscription")),
        ({"connectionstring": ""}, ("connectionString", "credentialEnv")),
        ({"connectionstring": "hello"}, ("connectionString", "Endpoint=sb://")),
    ],
)
def test_a_bad_option_of_the_source_is_named_with_what_is_allowed(
    change: dict[str, str], named: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_source({**BASE, **change}, is_stream=True)

    assert all(part in str(caught.value) for part in named), caught.value


def test_a_batch_does_not_consume() -> None:
    with pytest.raises(UsageError, match="mode is 'consume': expected one of browse"):
        parse_source({**BASE, "mode": "consume"}, is_stream=False)


@pytest.mark.parametrize(
    ("change", "columns", "named"),
    [
        ({"batchSize": "0"}, ["body"], ("batchSize", "'0'")),
        ({"inFlight": "101"}, ["body"], ("inFlight", "'101'", "1 to 100")),
        ({"onError": "ignore"}, ["body"], ("onError", "'ignore'", "fail, quarantine")),
        ({"onError": "quarantine"}, ["body"], ("quarantinePath",)),
        ({"messageIdColumn": "id"}, ["body", "key"], ("messageIdColumn", "'id'", "body, key")),
        ({}, ["text"], ("bodyColumn", "text")),
        ({"queue": ""}, ["body"], ("queue", "topic", "path")),
        ({"topic": "t"}, ["body"], ("queue", "topic")),
        ({"maxMessagesPerTrigger": "5"}, ["body"], ("maxmessagespertrigger", "unknown to the sink")),
    ],
)
def test_a_bad_option_of_the_sink_is_named_with_what_is_allowed(
    change: dict[str, str], columns: list[str], named: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sink({**BASE, **change}, columns)

    assert all(part.lower() in str(caught.value).lower() for part in named), caught.value


def test_a_sink_may_take_the_destination_from_a_column() -> None:
    options = parse_sink({"connectionString": CONNECTION, "pathColumn": "where"}, ["body", "where"])

    assert options.path == ""
    assert options.columns["path"] == "where"


def test_no_secret_shows_in_any_form_of_the_options() -> None:
    for options in (parse_source(BASE, is_stream=True), parse_sink(BASE, ["body"])):
        assert "c2VjcmV0" not in repr(options)
    with pytest.raises(UsageError) as caught:
        parse_source({**BASE, "connectionstring": "SharedAccessKey=c2VjcmV0"}, is_stream=True)
    assert "c2VjcmV0" not in str(caught.value)


def test_a_secret_may_stay_in_the_environment() -> None:
    access = Access("", "ORDERS_KEY", "contoso.servicebus.windows.net")

    assert access.connection_string({"ORDERS_KEY": CONNECTION}) == CONNECTION
    assert access.connection_string({"ORDERS_KEY": "SharedAccessKeyName=a;SharedAccessKey=b"}).startswith(
        "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=a"
    )
    with pytest.raises(UsageError, match="ORDERS_KEY is not set"):
        access.connection_string({})

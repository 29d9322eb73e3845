from __future__ import annotations

import re

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from pairbus.errors import UsageError
from pairbus.model.message_row import SENT_NAMES
from pairbus.spark.connector.access import Access
from pairbus.spark.connector.options import COLUMN_OPTIONS, OPTIONS, parse_sink, parse_source
from pairbus.spark.connector.schema import FIELDS
from pairbus.spark.connector.source import ServiceBusDataSource

CONNECTION = "Endpoint=sb://example/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0"
BASE = {"connectionstring": CONNECTION, "queue": "orders"}
LEFT_OUT = "left out"


def changed(change: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in {**BASE, **change}.items() if value != LEFT_OUT}


def test_a_source_has_the_documented_defaults() -> None:
    stream, batch = parse_source(BASE, is_stream=True), parse_source(BASE, is_stream=False)

    assert (stream.mode, batch.mode) == ("consume", "browse")
    assert (stream.messages_max, stream.bytes_max, stream.starting) == (10_000, 64 * 1024 * 1024, "earliest")


def test_every_option_has_a_help_text_and_a_default_that_it_allows() -> None:
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)
    for option in OPTIONS:
        assert option.help
        assert option.sides
        assert not (option.choices and option.default) or option.default in option.choices
        if option.range != (0, 0):
            low, high = option.range
            assert low < high
            assert not option.default or low <= int(option.default) <= high


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
        ({"queue": LEFT_OUT}, ("queue", "topic", "subscription")),
        ({"connectionstring": LEFT_OUT}, ("connectionString", "credentialEnv")),
        ({"connectionstring": "hello"}, ("connectionString", "Endpoint=sb://")),
        ({"namespace": "contoso"}, ("namespace", "credentialEnv")),
        ({"credentialEnv": "ORDERS"}, ("connectionString", "credentialEnv")),
        (
            {"connectionstring": LEFT_OUT, "credentialEnv": "no name"},
            ("credentialEnv", "environment variable"),
        ),
        ({"caFile": "/nowhere/ca.pem"}, ("caFile", "/nowhere/ca.pem")),
        ({"maxBytesPerTrigger": "64m"}, ("maxBytesPerTrigger", "'64m'", "whole number")),
        ({"startingSequence": "latest"}, ("startingSequence", "'latest'", "earliest", "mode browse")),
        ({"startingSequence": "7"}, ("startingSequence", "'7'", "earliest", "mode browse")),
        ({"batchsize": "5"}, ("'batchSize'", "unknown to the source")),
        ({"startingSequence": "Soon"}, ("startingSequence", "'Soon'")),
        ({"Que": "orders"}, ("'Que'", "unknown to the source")),
        ({"path": "x"}, ("'path'", "unknown")),
        ({"startingsequense": "7"}, ("'startingsequense'", "did you mean startingSequence?")),
    ],
)
def test_a_bad_option_of_the_source_is_named_with_what_is_allowed(
    change: dict[str, str], named: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_source(changed(change), is_stream=True)

    assert all(part in str(caught.value) for part in named), caught.value


def test_a_batch_does_not_consume() -> None:
    with pytest.raises(UsageError, match="mode is 'consume': a batch read leaves .* Use readStream"):
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
        ({"queue": LEFT_OUT}, ["body"], ("queue", "topic", "path")),
        ({"topic": "t"}, ["body"], ("queue", "topic")),
        ({"maxMessagesPerTrigger": "5"}, ["body"], ("maxMessagesPerTrigger", "unknown to the sink")),
        ({"rawColumn": "b", "bodyColumn": "b"}, ["b"], ("column b", "raw", "two columns")),
        ({}, ["body", "Subject", "SUBJECT"], ("'Subject'", "'SUBJECT'", "letter case", "rename or drop")),
        ({}, ["body", "body"], ("two columns 'body' and 'body'",)),
        ({}, ["", "text"], ("found '', text",)),
        ({}, [], ("found no column at all",)),
        ({}, ["body", "path"], ("'orders'", "column path", "drop")),
        ({"pathColumn": "where"}, ["body", "where"], ("'orders'", "column where", "option queue")),
    ],
)
def test_a_bad_option_of_the_sink_is_named_with_what_is_allowed(
    change: dict[str, str], columns: list[str], named: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sink(changed(change), columns)

    assert all(part.lower() in str(caught.value).lower() for part in named), caught.value


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_option_is_refused_by_name(value: str) -> None:
    """It is a variable that was not set, and what it stands for must not be guessed."""
    for option in OPTIONS:
        for side in option.sides:
            with pytest.raises(
                UsageError, match=f"^option {option.name} is empty: give it a value, or leave it out$"
            ):
                if side == "source":
                    parse_source({**BASE, option.name.upper(): value}, is_stream=None)
                else:
                    parse_sink({**BASE, option.name.upper(): value}, ["body"])


def test_columns_are_found_in_any_letter_case() -> None:
    options = parse_sink({**BASE, "bodyColumn": "TEXT"}, ["Text", "Message_Id", "Application_Properties"])

    assert options.columns == {
        "body": "Text", "message_id": "Message_Id", "application_properties": "Application_Properties"
    }  # fmt: skip


@pytest.mark.parametrize("dropped", SENT_NAMES)
def test_raw_without_a_column_of_the_message_is_refused_before_any_task_runs(dropped: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sink(BASE, [name for name in FIELDS if name != dropped])

    assert f"no column for {dropped}:" in str(caught.value)
    assert parse_sink(BASE, ["raw", "sequence_number", "entity", "enqueued_time", "state"]).columns["raw"]
    assert parse_sink(BASE, list(FIELDS)).columns["raw"]


def test_a_column_that_the_sink_does_not_know_is_refused_before_any_task_runs() -> None:
    """A mistyped column used to be dropped, and the messages went without it."""
    with pytest.raises(UsageError) as caught:
        parse_sink(BASE, ["body", "MessageID", "sesion_id"])

    text = str(caught.value)
    assert "does not know the columns MessageID, sesion_id: expected application_properties, body, " in text
    assert ".drop('MessageID', 'sesion_id')" in text
    assert "sequence_number, session_id, state, subject" in text
    columns = ["BODY", "mine", "State", "dead_letter_reason"]
    assert parse_sink({**BASE, "messageIdColumn": "Mine"}, columns).columns["message_id"] == "mine"


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


def test_every_field_of_a_message_can_be_in_a_column_of_another_name() -> None:
    """The mapping's options are the source's own names, and each says where its field is."""
    for option, field in COLUMN_OPTIONS.items():
        columns = ["path", "mine"] if field == "raw" else ["body", "path", "mine"]
        options = parse_sink({"connectionString": CONNECTION, option: "mine"}, columns)
        assert options.columns[field] == "mine", option
    by_broker = {
        "delivery_count", "expires_at", "state", "dead_letter_reason", "dead_letter_description",
    }  # fmt: skip
    assert set(COLUMN_OPTIONS.values()) == set(FIELDS) - by_broker | {"path"}


def test_a_path_of_the_command_line_and_of_an_option_agree() -> None:
    subscription = parse_source(
        {"connectionString": CONNECTION, "topic": "t", "subscription": "s", "subQueue": "deadletter"},
        is_stream=True,
    )
    transfer = parse_source({**BASE, "subQueue": "transferDeadLetter"}, is_stream=True)

    assert subscription.entity == "t/Subscriptions/s/$DeadLetterQueue"
    assert transfer.entity == "orders/$Transfer/$DeadLetterQueue"


def test_a_secret_may_stay_in_the_environment() -> None:
    access = parse_source(
        {"credentialEnv": "ORDERS_KEY", "namespace": "sb://contoso.example/", "queue": "orders"},
        is_stream=True,
    ).access
    key = "SharedAccessKeyName=a;SharedAccessKey=b"

    assert access.connection_string({"ORDERS_KEY": key}) == f"Endpoint=sb://contoso.example/;{key}"
    whole = f"Endpoint=sb://Contoso.example/;{key}"
    assert access.connection_string({"ORDERS_KEY": whole}) == whole
    with pytest.raises(UsageError, match="ORDERS_KEY is not set"):
        access.connection_string({})
    with pytest.raises(UsageError, match="namespace is 'contoso.example', but ORDERS_KEY holds .* 'example'"):
        access.connection_string({"ORDERS_KEY": CONNECTION})
    with pytest.raises(UsageError, match="a key without an Endpoint: give the option namespace"):
        Access("", "ORDERS_KEY").connection_string({"ORDERS_KEY": key})


def test_a_secret_in_the_wrong_option_is_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        parse_source({"credentialEnv": CONNECTION, "queue": "orders"}, is_stream=True)

    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "kind", "expected"),
    [
        ("body", "int", "binary or string"),
        ("message_id", "bigint", "string"),
        ("time_to_live_ms", "double", "bigint or int"),
        ("scheduled_enqueue_time", "string", "timestamp"),
        ("application_properties", "map<string,array<int>>", "map<string,…>"),
        ("application_properties", "string", "map<string,"),
    ],
)
def test_a_column_that_no_row_can_be_sent_with_is_refused_before_any_task_runs(
    field: str, kind: str, expected: str
) -> None:
    types = {"body": "binary", field: kind}

    with pytest.raises(
        UsageError, match=f"column {field} is {re.escape(kind)}: expected .*{re.escape(expected)}"
    ):
        parse_sink(BASE, list(types), types)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("void", ""),
        ("map<string,struct<type:string,value:string>>", ""),
        ("map<string,int>", "int"),
        ("map<string,bigint>", "long"),
        ("map<string,timestamp>", "timestamp"),
    ],
)
def test_application_properties_of_plain_values_have_one_amqp_type(kind: str, expected: str) -> None:
    types = {"body": "string", "application_properties": kind}

    assert parse_sink(BASE, list(types), types).property_type == expected


def test_a_connection_string_of_one_entity_names_it() -> None:
    limited = {"connectionString": f"{CONNECTION};EntityPath=orders"}

    assert parse_source(limited, is_stream=False).queue == "orders"
    assert parse_source({**limited, "queue": "Orders"}, is_stream=False).queue == "Orders"
    source = parse_source({**limited, "subscription": "all"}, is_stream=False)
    assert (source.queue, source.topic, source.subscription) == ("", "orders", "all")
    assert parse_sink(limited, ["body"]).path == "orders"
    assert parse_sink({**limited, "topic": "orders"}, ["body"]).path == "orders"
    for wrong in ({"queue": "bills"}, {"topic": "bills", "subscription": "all"}):
        with pytest.raises(UsageError, match=r"'bills', but .* EntityPath=orders"):
            parse_source({**limited, **wrong}, is_stream=False)
    for wrong in ({"queue": "bills"}, {"topic": "bills"}):
        with pytest.raises(UsageError, match=r"'bills', but .* EntityPath=orders"):
            parse_sink({**limited, **wrong}, ["body"])


def test_a_connection_string_of_one_entity_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS", f"{CONNECTION};EntityPath=orders")

    assert parse_source({"credentialEnv": "ORDERS"}, is_stream=True).queue == "orders"


def test_raw_is_read_on_request_only() -> None:
    def columns(**more: str) -> str:
        return ServiceBusDataSource({**BASE, **more}).schema()

    assert "raw binary" not in columns()
    assert "raw binary" in columns(includeRaw="true")


def test_overwrite_is_refused() -> None:
    rows = StructType([StructField("body", BinaryType())])

    with pytest.raises(UsageError, match=r'mode\("overwrite"\) cannot be used.*mode\("append"\)'):
        ServiceBusDataSource(BASE).writer(rows, overwrite=True)


def test_a_variable_that_is_not_set_is_told_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERS_KEY", raising=False)
    source = ServiceBusDataSource({"credentialEnv": "ORDERS_KEY", "queue": "orders"})

    with pytest.raises(UsageError, match="the environment variable ORDERS_KEY is not set"):
        source.schema()
    monkeypatch.setenv("ORDERS_KEY", CONNECTION)
    assert "body binary" in source.schema()

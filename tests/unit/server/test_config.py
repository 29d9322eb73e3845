from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.errors import UsageError
from pairbus.model.entity import QUEUE, SUBSCRIPTION, TOPIC
from pairbus.server.assemble import assemble
from pairbus.server.config.declarations import Declarations, read_declarations
from pairbus.server.config.located_json import Located, parse
from pairbus.server.config.options import (
    MEMORY,
    Options,
    ServeSettings,
    default_data_directory,
    load_declarations,
    make_options,
)

EMULATOR = """{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": false,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": false,
              "RequiresSession": false
            }
          }
        ],
        "Topics": [
          {
            "Name": "topic.1",
            "Properties": {
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "RequiresDuplicateDetection": false
            },
            "Subscriptions": [
              {
                "Name": "subscription.1",
                "Properties": {
                  "DeadLetteringOnMessageExpiration": false,
                  "DefaultMessageTimeToLive": "PT1H",
                  "LockDuration": "PT1M",
                  "MaxDeliveryCount": 3,
                  "ForwardDeadLetteredMessagesTo": "",
                  "ForwardTo": "",
                  "RequiresSession": false
                },
                "Rules": [
                  {
                    "Name": "app-prop-filter-1",
                    "Properties": {
                      "FilterType": "Correlation",
                      "CorrelationFilter": {
                        "ContentType": "application/text",
                        "CorrelationId": "id1",
                        "Label": "subject1",
                        "MessageId": "msgid1",
                        "ReplyTo": "someQueue",
                        "ReplyToSessionId": "sessionId",
                        "SessionId": "session1",
                        "To": "xyz"
                      }
                    }
                  }
                ]
              },
              {
                "Name": "subscription.2",
                "Rules": [
                  {
                    "Name": "sql",
                    "Properties": {
                      "FilterType": "Sql",
                      "SqlFilter": {"SqlExpression": "sys.Label = 'a' AND n > 3"},
                      "Action": {"SqlExpression": "SET x = 'y'"}
                    }
                  }
                ]
              },
              {"Name": "subscription.3"}
            ]
          }
        ]
      }
    ],
    "Logging": {"Type": "File"}
  }
}
"""


def no_secret(form: str, name: str) -> str:
    raise UsageError(f"no secret {form} {name}")


def read(text: str) -> Declarations:
    return read_declarations(text, no_secret)


def test_the_emulators_own_file_is_read_as_it_is() -> None:
    found = read(EMULATOR)

    assert found.namespace == "sbemulatorns"
    assert [(entity.kind, entity.path) for entity in found.entities] == [
        (QUEUE, "queue.1"),
        (TOPIC, "topic.1"),
        (SUBSCRIPTION, "topic.1/Subscriptions/subscription.1"),
        (SUBSCRIPTION, "topic.1/Subscriptions/subscription.2"),
        (SUBSCRIPTION, "topic.1/Subscriptions/subscription.3"),
    ]
    queue = found.entities[0].settings
    assert (queue.lock_duration_ms, queue.default_ttl_ms, queue.max_delivery_count) == (60_000, 3_600_000, 3)
    assert queue.forward_to is None
    correlation, sql, default = (json.loads(entity.settings.rules[0]) for entity in found.entities[2:])
    assert correlation["filter"]["fields"]["label"] == "subject1"
    assert sql["filter"] == {"kind": "sql", "expression": "sys.Label = 'a' AND n > 3", "parameters": {}}
    assert sql["action"]["expression"] == "SET x = 'y'"
    assert (default["name"], default["filter"]) == ("$Default", {"kind": "true"})


def test_our_own_keys_are_read_and_secrets_stay_out_of_sight() -> None:
    text = json.dumps(
        {
            "PairBus": {
                "AccessRules": [{"Name": "app", "Rights": ["Send", "Listen"], "PrimaryKeyEnv": "APP_KEY"}],
                "Quotas": {"MaxConnections": 50},
                "TlsNames": ["broker.example.com"],
            }
        }
    )

    found = read_declarations(text, lambda form, name: f"secret-of-{form}-{name}")

    assert found.access_rules[0].primary_key == "secret-of-Env-APP_KEY"
    assert found.access_rules[0].secondary_key is None
    assert "secret-of" not in repr(found)
    assert found.quotas == {"MaxConnections": 50}
    assert found.tls_names == ("broker.example.com",)


QUEUE_1 = "UserConfig.Namespaces[0].Queues[0]"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"PT1M",\n              "MaxDel',
            '"1 minute",\n              "MaxDel',
            f"{QUEUE_1}.Properties.LockDuration (line 15)",
        ),
        (
            '"LockDuration": "PT1M",\n              "Max',
            '"LockDuration": "PT1H",\n              "Max',
            f"{QUEUE_1}.Properties.LockDuration (line 15)",
        ),
        (
            '"MaxDeliveryCount": 3,\n              "R',
            '"MaxDeliveryCount": "3",\n              "R',
            f"{QUEUE_1}.Properties.MaxDeliveryCount (line 16): expected a whole number",
        ),
        (
            '"RequiresSession": false\n            }',
            '"RequiresSession": 1\n            }',
            f"{QUEUE_1}.Properties.RequiresSession (line 18): expected true or false",
        ),
        ('"Name": "queue.1"', '"Name": "que ue"', f"{QUEUE_1}.Name (line 8)"),
        ('"Name": "queue.1"', '"name": "queue.1"', f"{QUEUE_1}.name (line 8): the key 'name' is not known"),
        ('"Name": "queue.1",', "", f"{QUEUE_1} (line 7): the key 'Name' is missing"),
        ('"Queues": [', '"Queues": {}, "Queues": [', "the key 'Queues' stands here twice"),
        ('"Name": "queue.1"', '"Name": "topic.1"', "'topic.1' is declared twice"),
        ("sys.Label = 'a'", "sys.Label = = 'a'", "Rules[0].Properties.SqlFilter.SqlExpression (line 68)"),
        ('"FilterType": "Sql"', '"FilterType": "Regex"', "Rules[0].Properties.FilterType (line 67)"),
        ('"Type": "File"}', '"Type": "File"', "line 83"),
        ('"Logging"', '"Loging"', "UserConfig.Loging (line 80)"),
        (
            '"Namespaces": [',
            '"Namespaces": [ {"Name": "other"},',
            "Namespaces[1] (line 4): a broker serves one namespace",
        ),
    ],
)
def test_every_error_names_the_key_path_and_the_line(old: str, new: str, message: str) -> None:
    assert old in EMULATOR

    with pytest.raises(UsageError) as caught:
        read(EMULATOR.replace(old, new, 1))

    assert message in str(caught.value)


def test_errors_of_access_rules_and_quotas_say_where() -> None:
    for ours, message in (
        ({"AccessRules": [{"Name": "a", "Rights": ["Read"]}]}, "PairBus.AccessRules[0].Rights (line 1)"),
        (
            {"AccessRules": [{"Name": "a", "Rights": ["Send"], "PrimaryKeyEnv": "NO"}]},
            "PrimaryKeyEnv (line 1): no secret",
        ),
        (
            {"AccessRules": [{"Name": "a", "Rights": ["Send"], "PrimaryKey": "x", "PrimaryKeyEnv": "y"}]},
            "in two ways",
        ),
        (
            {"AccessRules": [{"Name": "a", "Rights": ["Manage"]}]},
            "PairBus.AccessRules[0] (line 1): Rule 'a' grants Manage",
        ),
        (
            {"AccessRules": [{"Name": "a", "Rights": ["Send"]}, {"Name": "a", "Rights": ["Listen"]}]},
            "PairBus.AccessRules[1] (line 1): the access rule 'a' is declared twice, first at PairBus.AccessRules[0] (line 1)",
        ),
        (
            {"AccessRules": [{"Name": "a", "Rights": ["Send"], "PrimaryKey": ""}]},
            "PairBus.AccessRules[0].PrimaryKey (line 1): the key is empty",
        ),
        (
            {"AccessRules": [{"Name": "a", "Rights": ["Send"], "SecondaryKey": ""}]},
            "PairBus.AccessRules[0].SecondaryKey (line 1): the key is empty",
        ),
        (
            {"AccessRules": [{"Name": f"a{number}", "Rights": ["Send"]} for number in range(12)]},
            "PairBus.AccessRules[11] (line 1): at most 12 access rules are allowed, with RootManageSharedAccessKey",
        ),
        ({"Quotas": {"MaxConnections": 0}}, "PairBus.Quotas.MaxConnections (line 1)"),
    ):
        with pytest.raises(UsageError) as caught:
            read(json.dumps({"PairBus": ours}))
        assert message in str(caught.value)


def _with_rules(*rules: dict[str, object]) -> str:
    queue = {"Name": "q", "AuthorizationRules": rules}
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [queue]}]}})


def test_rules_of_an_entity_are_checked_as_those_of_the_namespace() -> None:
    send: dict[str, object] = {"Name": "a", "Rights": ["Send"]}
    for rules, message in (
        (
            ({**send, "PrimaryKey": "1"}, {**send, "PrimaryKey": "2"}),
            "AuthorizationRules[1] (line 1): the access rule 'a'",
        ),
        (({**send, "PrimaryKey": ""},), "AuthorizationRules[0].PrimaryKey (line 1): the key is empty"),
        (
            tuple({**send, "Name": f"a{number}"} for number in range(13)),
            "AuthorizationRules[12] (line 1): at most 12",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            read(_with_rules(*rules))
        assert message in str(caught.value)
    (entity,) = read(_with_rules(*({**send, "Name": f"a{number}"} for number in range(12)))).entities
    assert len(entity.access_rules) == 12


def test_a_namespace_may_declare_twelve_rules_if_the_root_rule_is_among_them() -> None:
    rules = [{"Name": f"a{number}", "Rights": ["Send"]} for number in range(11)]
    assert len(read(json.dumps({"PairBus": {"AccessRules": rules}})).access_rules) == 11
    root = {"Name": "RootManageSharedAccessKey", "Rights": ["Manage", "Send", "Listen"]}
    assert len(read(json.dumps({"PairBus": {"AccessRules": [root, *rules]}})).access_rules) == 12


def _plain(item: Located) -> object:
    if isinstance(item.value, dict):
        return {key: _plain(value) for key, value in item.value.items()}
    if isinstance(item.value, list):
        return [_plain(value) for value in item.value]
    return item.value


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(JSON_VALUES, st.sampled_from([None, 2]))
def test_located_json_reads_what_json_writes(value: object, indent: int | None) -> None:
    assert _plain(parse(json.dumps(value, indent=indent))) == value


@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \\u\n', max_size=40))
def test_located_json_reads_or_refuses_exactly_what_json_does(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(UsageError):
            parse(text)
        return
    try:
        assert _plain(parse(text)) == expected
    except UsageError as error:
        assert "twice" in str(error)  # noqa: PT017 - the one thing we refuse and json does not


COMMENTS = st.lists(
    st.sampled_from(
        ['// "a": 1,\n', "/* { */", "/**/", "/***/", '/* "\n // */', "//\n", "// /*\r\n", " ", "\n"]
    ),
    max_size=3,
).map("".join)


@given(JSON_VALUES, st.data())
def test_located_json_reads_comments_as_spaces(value: object, data: st.DataObject) -> None:
    tokens = re.findall(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+', json.dumps(value))
    text = "".join(token + data.draw(COMMENTS) for token in ["", *tokens])

    assert _plain(parse(text)) == value


def test_slashes_in_a_string_are_no_comment() -> None:
    assert _plain(parse('{"//": "/* x */ // y"} // end')) == {"//": "/* x */ // y"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("// first\n/* second\nthird */ {]", "line 3, column 11: expected a key"),
        ('{\n  "a": 1, // one\n  "a": 2\n}', "line 3, column 3: the key 'a' stands here twice"),
        ('{"a": 1} /* never', "line 1, column 10: a comment begins here and does not end"),
        ('{"a": /', "line 1, column 7: expected a value"),
        ('{"a": 1} /', "line 1, column 10: something follows"),
        ("# a", "line 1, column 1: expected a value"),
    ],
)
def test_errors_after_comments_name_the_right_place(text: str, place: str) -> None:
    with pytest.raises(UsageError, match=re.escape(place)):
        parse(text)


def test_a_value_after_comments_knows_its_line() -> None:
    found = parse('{\n// one\n/* two\nthree */ "a": 1}').value

    assert isinstance(found, dict)
    assert found["a"].place == "a (line 4)"


def test_the_emulators_file_with_comments_is_read() -> None:
    commented = "// its own file\n" + EMULATOR.replace("{", "{ // begins\n", 1).rstrip() + "\n// end"

    found = [(entity.path, entity.settings) for entity in read(commented).entities]

    assert found == [(entity.path, entity.settings) for entity in read(EMULATOR).entities]


def make(environment: dict[str, str] | None = None, **changes: Any) -> Options:
    given: dict[str, Any] = {"amqp": "127.0.0.1:0", "http": "127.0.0.1:0", **changes}
    return make_options(ServeSettings(**given), environment or {"XDG_DATA_HOME": "/data"})


def test_options_have_the_products_defaults() -> None:
    options = make()

    assert options.namespace == "local"
    assert options.data == default_data_directory({"XDG_DATA_HOME": "/data"}) / "local"


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    file.write_text(
        EMULATOR[:-2].rstrip() + ', "PairBus": {"Quotas": {"MaxConnections": 7, "MaxHttpBodyBytes": 99}}}'
    )

    from_file = make(config=str(file))
    from_line = make(config=str(file), namespace="contoso", connections_max=5)

    assert (from_file.namespace, from_file.limits.connections_max) == ("sbemulatorns", 7)
    assert from_file.limits.http_body_bytes_max == 99
    assert (from_line.namespace, from_line.limits.connections_max) == ("contoso", 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"namespace": "con/toso"}, "--namespace 'con/toso'"),
        ({"namespace": "../x"}, "--namespace"),
        ({"namespace": ""}, "--namespace ''"),
        ({"tls_names": ("bad name",)}, "--tls-name 'bad name' is neither"),
        ({"tls_names": ("",)}, "--tls-name '' is neither"),
        ({"ready_file": "/"}, "--ready-file / is a directory"),
        ({"tls_cert": "a.pem"}, "--tls-cert and --tls-key go together"),
        ({"tls": False, "tls_cert": "a", "tls_key": "b"}, "exclude each other"),
        ({"amqp": "nowhere"}, "--amqp needs HOST:PORT"),
        ({"config": "/does/not/exist.json"}, "--config /does/not/exist.json cannot be read: No such file"),
    ],
)
def test_wrong_options_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lease": float("nan")}, "--lease nan: a lease lasts 0.5 to 300 seconds"),
        ({"lease": float("inf")}, "--lease inf: a lease lasts"),
        ({"lease": 0.1}, "--lease 0.1: a lease lasts"),
        ({"advertise": "a b:1"}, "'a b' is neither a host name nor an address"),
        ({"advertise": "http://a:1"}, "--advertise"),
        ({"advertise": ":1"}, "--advertise"),
    ],
)
def test_wrong_options_of_a_node_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(store="postgresql://db/x", node="a", **changes)


def test_a_node_may_advertise_names_and_addresses() -> None:
    for host in ("node-1.example.com", "node_1", "10.0.0.1", "[2001:db8::1]"):
        made = make(store="postgresql://db/x", node="a", advertise=f"{host}:5671").cluster
        assert made is not None
        assert made.advertise == (host.strip("[]"), 5671)


def test_key_files_lie_beside_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    rule = {"Name": "a", "Rights": ["Send"], "PrimaryKeyFile": "key.txt", "SecondaryKeyEnv": "KEY"}
    file.write_text(json.dumps({"PairBus": {"AccessRules": [rule]}}))
    with pytest.raises(UsageError, match=r"c\.json: .*PrimaryKeyFile.*key\.txt cannot be read"):
        load_declarations(str(file), {"KEY": "two"})
    (tmp_path / "key.txt").write_text("one\n")

    found = load_declarations(str(file), {"KEY": "two"})

    assert (found.access_rules[0].primary_key, found.access_rules[0].secondary_key) == ("one", "two")


@pytest.mark.parametrize("key", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
def test_an_unknown_target_is_told_with_file_and_place(tmp_path: Path, key: str) -> None:
    file = tmp_path / "config.json"
    queue = {"Name": "orders", "Properties": {"MaxDeliveryCount": 3, key: "nowhere"}}
    file.write_text(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [queue]}]}}, indent=1)
    )
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if key in text)
    options = Options(
        namespace="contoso",
        data=tmp_path / "data",
        store=MEMORY,
        declarations=load_declarations(str(file), {}),
    )

    with pytest.raises(UsageError) as caught:
        assemble(options, 1_800_000_000_000)

    place = f"UserConfig.Namespaces[0].Queues[0].Properties.{key}"
    assert str(caught.value) == (
        f"{file}: {place} (line {line}): {key} of 'orders' is 'nowhere': no queue or topic has this name."
    )

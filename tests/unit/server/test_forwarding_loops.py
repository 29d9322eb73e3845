"""Entities of a configuration whose messages come back to them are allowed, and named in the log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from pairbus.gateway.broker import Broker
from pairbus.server.assemble import assemble
from pairbus.server.config.declarations import Declarations, read_declarations
from pairbus.server.config.forwarding import forwarding_loops
from pairbus.server.config.options import MEMORY, Options


def declarations(queues: dict[str, str], topics: dict[str, dict[str, str]] | None = None) -> Declarations:
    """Queues, and topics with their subscriptions, each with what it forwards to ("": nothing)."""
    namespace = {
        "Name": "contoso",
        "Queues": [{"Name": name, "Properties": {"ForwardTo": to}} for name, to in queues.items()],
        "Topics": [
            {
                "Name": topic,
                "Subscriptions": [
                    {"Name": name, "Properties": {"ForwardTo": to}} for name, to in subscriptions.items()
                ],
            }
            for topic, subscriptions in (topics or {}).items()
        ],
    }

    def no_secrets(*_: object) -> str:
        raise AssertionError("there is no secret in this configuration")

    return read_declarations(json.dumps({"UserConfig": {"Namespaces": [namespace]}}), no_secrets)


@pytest.mark.parametrize(
    ("queues", "topics", "loops"),
    [
        ({"a": "", "b": "a", "c": "a"}, {}, []),
        ({"a": "A"}, {}, [("a", "a")]),
        ({"a": "b", "b": "c", "c": "a", "d": "a"}, {}, [("a", "b", "c", "a")]),
        ({"a": "b", "b": "a", "c": "d", "d": "c"}, {}, [("a", "b", "a"), ("c", "d", "c")]),
        ({"a": "t"}, {"t": {"x": "", "y": "a"}}, [("a", "t", "t/Subscriptions/y", "a")]),
        ({"a": "t"}, {"t": {"x": "u"}, "u": {"y": ""}}, []),
        ({f"q{n}": f"q{n + 1}" for n in range(3_000)}, {}, []),
    ],
    ids=["none", "itself", "three queues", "two loops", "over a topic", "a chain of topics", "a long chain"],
)
def test_loops_are_found(
    queues: dict[str, str], topics: dict[str, dict[str, str]], loops: list[tuple[str, ...]]
) -> None:
    assert forwarding_loops(declarations(queues, topics).entities) == loops


def test_a_loop_is_served_and_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = Options(
        namespace="contoso", data=tmp_path, store=MEMORY, tls=False, amqp=("127.0.0.1", 0),
        declarations=declarations({"a": "b", "b": "a"}),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "pairbus"):
        assembly = assemble(options, 1_700_000_000_000)

    assert isinstance(assembly.broker, Broker)
    assert assembly.broker.namespace.find("a") is not None
    [record] = [one for one in caplog.records if getattr(one, "event", "") == "config.forwarding_loop"]
    assert record.levelname == "WARNING"
    assert getattr(record, "way", "") == "a > b > a"

"""Entities whose names are addresses of the broker itself, through the official client and the command line."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.gateway.own_addresses import OWN_ADDRESSES
from tests.integration.server.test_process import WAIT_SECONDS, command, served

NAMES = [address.removeprefix("/") for address in OWN_ADDRESSES]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with served(tmp_path_factory.mktemp("own") / "data") as (_, found):
        yield found


def cli(ready: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("entity", "--connection-string", ready["connection_string"], *arguments),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def done(ready: dict[str, str], *arguments: str) -> str:
    result = cli(ready, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def management(ready: dict[str, str]) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        ready["connection_string"], connection_verify=ready["ca_file"]
    )


def status(ready: dict[str, str], target: str, method: str = "GET") -> int:
    request = urllib.request.Request(f"http://{ready['amqp']}{target}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_declared_entities_of_such_names_can_be_read_and_deleted(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    queues = [{"Name": name} for name in NAMES]
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": queues}]}}))
    with served(tmp_path / "data", "--config", str(config)) as (_, ready), management(ready) as client:
        for name in NAMES:
            assert client.get_queue(name).name == name
            client.delete_queue(name)
        assert list(client.list_queues()) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_the_official_client_manages_such_an_entity(ready: dict[str, str], name: str, kind: str) -> None:
    with management(ready) as client:

        def call(verb: str, *arguments: Any) -> Any:
            return getattr(client, f"{verb.format(kind)}")(*arguments)

        call("create_{}", name)
        assert name in [one.name for one in call("list_{}s")]
        found = call("get_{}", name)
        found.user_metadata = "mine"
        call("update_{}", found)
        assert call("get_{}", name).user_metadata == "mine"
        assert call("get_{}_runtime_properties", name).name == name
        if kind == "topic":
            client.create_subscription(name, "owner")
            assert client.get_rule(name, "owner", "$Default").name == "$Default"
        with (
            ServiceBusClient.from_connection_string(ready["connection_string"]) as messages,
            getattr(messages, f"get_{kind}_sender")(name) as sender,
        ):
            sender.send_messages(ServiceBusMessage("x"))
        call("delete_{}", name)
        with pytest.raises(ResourceNotFoundError):
            call("get_{}", name)


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_manages_such_an_entity(ready: dict[str, str], name: str) -> None:
    done(ready, "create", "queue", name)
    assert name in [row["name"] for row in json.loads(done(ready, "list", "--json"))]
    done(ready, "update", name, "--set", "max_delivery_count=3")
    assert json.loads(done(ready, "show", name, "--json"))["max_delivery_count"] == 3
    done(ready, "delete", "--yes", name)
    assert cli(ready, "show", name).returncode == 1


def test_the_addresses_stay_what_they_are_beside_such_an_entity(ready: dict[str, str]) -> None:
    with management(ready) as client:
        client.create_queue("metrics")
        try:
            assert [status(ready, target) for target in ("/health", "/health?x=1", "/metrics")] == [
                200,
                200,
                401,
            ]
            assert status(ready, "/health", "HEAD") == 200
            assert status(ready, "/health?api-version=2021-05") == 401
            assert status(ready, "/metrics", "DELETE") == 401
        finally:
            client.delete_queue("metrics")

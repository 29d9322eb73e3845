"""``pairbus access`` against a running broker: rules come and go, keys are replaced, and nothing prints a key unasked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from click.testing import CliRunner, Result

from pairbus.cli.root import root
from pairbus.errors import UsageError
from pairbus.local.management import ManagementClient
from pairbus.model.access import ROOT_RULE
from pairbus.server import main as main_module
from pairbus.server.assemble import assemble
from pairbus.server.config.options import Options
from pairbus.server.ready import ReadyInfo, read_ready_file
from pairbus.testing import Namespace
from tests.conformance.sdk import connection_part
from tests.swallowing import swallowing_way

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def broker() -> Iterator[Namespace]:
    with Namespace("contoso", queues=["orders"]) as namespace:
        yield namespace


def run(connection_string: str, *arguments: str) -> Result:
    return CliRunner().invoke(root, ["access", *arguments], env={"PAIRBUS_PRIMARY": connection_string})


def test_a_rule_is_set_used_and_removed_while_the_broker_runs(broker: Namespace, tmp_path: Path) -> None:
    text = broker.connection_string
    key_file = tmp_path / "shop.key"
    key_file.write_text("a-given-key\n")

    made = run(text, "set", "shop", "--right", "send", "--key-file", str(key_file))
    listed = run(text, "list", "--json")
    printed = run(text, "connection-string", "shop").stdout.strip()

    assert made.exit_code == 0, made.output
    assert [(row["name"], row["rights"]) for row in json.loads(listed.stdout)][-1] == ("shop", ["Send"])
    assert "a-given-key" not in made.output + listed.output
    assert connection_part(printed, "SharedAccessKey") == "a-given-key"
    with (
        ServiceBusClient.from_connection_string(printed, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
        assert run(text, "remove", "shop").exit_code == 0
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("y"))
    assert run(text, "remove", "shop").exit_code == 1
    unclear = run(text, "set", "shop")
    assert isinstance(unclear.exception, UsageError)
    assert "there is no rule shop yet: give each right of a new rule with --right" in str(unclear.exception)
    assert run(text, "remove", ROOT_RULE).exit_code == 3


@pytest.mark.promise("M5")
async def test_the_root_key_is_rotated_and_the_ready_file_has_the_new_one(tmp_path: Path) -> None:
    options = Options(
        namespace="contoso",
        data=tmp_path,
        amqp=("127.0.0.1", 0),
        http=None,
        tls=False,
        ready_file=tmp_path / "r",
    )
    started: asyncio.Future[ReadyInfo] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(main_module._serve(options, assemble, None, started.set_result))
    try:
        before = (await started).connection_string
        done = await asyncio.to_thread(run, before, "rotate", ROOT_RULE)
        assert done.exit_code == 0, done.output

        files = [read_ready_file(file) for file in main_module.ready_files(options)]
        after = {one.connection_string for one in files if one is not None}
        assert len(files) == 2
        assert len(after) == 1
        assert before not in after
        assert (await asyncio.to_thread(run, before, "list")).exit_code == 3
        assert (await asyncio.to_thread(run, after.pop(), "list")).exit_code == 0
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def _behind(broker: Namespace, *ports: int) -> str:
    """The connection string with other addresses first."""
    endpoint = connection_part(broker.connection_string, "Endpoint")
    own = endpoint.removeprefix("sb://").rstrip("/")
    hosts = ",".join([*(f"127.0.0.1:{port}" for port in ports), own])
    return broker.connection_string.replace(own, hosts)


@pytest.mark.parametrize("how", ["swallows", "hangs up"])
def test_an_address_that_accepts_and_does_not_answer_is_left_for_the_next(
    broker: Namespace, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.cli.broker.access.OTHERS_SECONDS_MAX", 0.2)
    with swallowing_way(("127.0.0.1", 1)) as way:  # where nobody listens
        if how == "swallows":
            way.swallow()
        text = _behind(broker, way.port)
        assert ROOT_RULE in run(text, "list").stdout
        assert run(text, "connection-string", ROOT_RULE).exit_code == 0
        assert run(text, "set", "shop", "--right", "Send").exit_code == 0
        assert run(text, "rotate", "shop").exit_code == 0
        assert run(text, "remove", "shop").exit_code == 0


def test_a_change_without_an_answer_is_not_made_elsewhere_and_says_that_it_may_have_been_made(
    broker: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.cli.broker.access.REQUEST_SECONDS_MAX", 0.5)
    own = int(connection_part(broker.connection_string, "Endpoint").rstrip("/").rpartition(":")[2])
    asked: list[str] = []
    real = ManagementClient.ask
    with swallowing_way(("127.0.0.1", own)) as way:

        def ask(self: ManagementClient, method: str, *rest: object) -> object:
            asked.append(f"{method} {self._address}")
            if method == "DELETE":
                way.swallow()
            return real(self, method, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(ManagementClient, "ask", ask)
        refused = run(_behind(broker, way.port), "remove", "shop")
        assert refused.exit_code == 3
        assert "may have been made" in refused.output
        assert asked == [f"GET 127.0.0.1:{way.port}", f"DELETE 127.0.0.1:{way.port}"]

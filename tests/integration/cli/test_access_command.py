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
from pairbus.model.access import ROOT_RULE
from pairbus.server import main as main_module
from pairbus.server.assemble import assemble
from pairbus.server.config.options import Options
from pairbus.server.ready import ReadyInfo, read_ready_file
from pairbus.testing import Namespace
from tests.conformance.sdk import connection_part

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

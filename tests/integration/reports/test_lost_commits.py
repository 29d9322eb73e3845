"""What `pairbus reconcile` says after the store of a broker was repaired with a loss, or replaced by an older copy (B10, decision 0212)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from click.testing import CliRunner, Result

from pairbus.cli.root import root
from pairbus.testing import Namespace

pytestmark = pytest.mark.promise("B10")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(root, [str(one) for one in arguments], standalone_mode=False)


def verdict(data: Path) -> tuple[str, int]:
    inputs = (f"--sent={data}", f"--received={data}")
    told = json.loads(run("reconcile", "--engine", "local", "--json", *inputs).stdout)
    return told["verdict"], told["accepted"]


def served(data: Path) -> Namespace:
    return Namespace("contoso", process=True, data=data, queues=["orders"], audit=True)


def send(namespace: Namespace, *names: str) -> None:
    with namespace.client() as client, client.get_queue_sender("orders") as sender:
        for name in names:
            sender.send_messages(ServiceBusMessage(f"the order {name}", message_id=name))


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_after_a_repair_that_accepts_a_loss_nothing_is_proven(tmp_path: Path, how: str) -> None:
    data = tmp_path / "data"
    with served(data) as namespace:
        send(namespace, "a1", "a2", "a3", "a4", "a5")
        if how == "killed":
            namespace.kill()
    assert verdict(data) == ("holds", 5)
    (segment,) = [one for one in (data / "store").glob("*.segment") if b"the order a2" in one.read_bytes()]
    held = segment.read_bytes()
    at = held.index(b"the order a2")
    segment.write_bytes(held[:at] + bytes(len(held) - at))

    assert run("store", "repair", "--data", data, "--accept-loss").return_value == 0
    assert verdict(data) == ("unproven", 5)
    with served(data):
        pass
    assert verdict(data) == ("unproven", 5)


def test_after_a_restored_store_nothing_is_proven(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with served(data) as namespace:
        send(namespace, "a1")
    shutil.copytree(data / "store", copy)
    with served(data) as namespace:
        send(namespace, "a2")
    shutil.rmtree(data / "store")
    copy.rename(data / "store")
    with served(data) as namespace:
        send(namespace, "a3")
    assert verdict(data) == ("unproven", 3)

"""Copies of parts of an audit log, and parts in the place of others, in certificates of both engines (B10, D8, decision 0206)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from click.testing import CliRunner

from pairbus.cli.root import root
from pairbus.errors import UsageError
from pairbus.testing import Namespace
from tests.integration.spark.kit import small_session


@pytest.fixture(params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "spark":
        small_session()  # one session serves all Spark tests of a process, whichever comes first
    return str(request.param)


def reconcile(engine: str, *inputs: Path) -> dict[str, object]:
    places = [text for one in inputs for text in (f"--sent={one}", f"--received={one}")]
    result = CliRunner().invoke(
        root, ["reconcile", "--engine", engine, "--json", *places], standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """The parts of two lives of a broker, of two sends and of three."""
    for names in (("a1", "a2"), ("b1", "b2", "b3")):
        namespace = Namespace("contoso", process=True, data=tmp_path / "data", queues=["orders"], audit=True)
        with namespace, namespace.client() as client, client.get_queue_sender("orders") as sender:
            for name in names:
                sender.send_messages(ServiceBusMessage(f"the order {name}", message_id=name))
    return sorted((tmp_path / "data" / "messages-audit").rglob("part-*.parquet"), key=lambda part: part.name)


@pytest.mark.promise("D8")
def test_a_part_counts_once_wherever_its_copy_lies(tmp_path: Path, parts: list[Path], engine: str) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    for part in parts:
        shutil.copy(part, copies)
        shutil.copy(part, copies / f"copy of {part.name}")
    found = reconcile(engine, tmp_path / "data", copies)
    assert (found["verdict"], found["accepted"], found["absorbed"]) == ("holds", 5, 0)


@pytest.mark.promise("B10")
def test_a_part_in_the_place_of_another_one_is_refused(
    tmp_path: Path, parts: list[Path], engine: str
) -> None:
    shutil.copy(parts[0], parts[1])
    with pytest.raises(
        UsageError, match=rf"{parts[1].name} cannot be read \(it is the part hour=.*/{parts[0].name}"
    ):
        reconcile(engine, tmp_path / "data")

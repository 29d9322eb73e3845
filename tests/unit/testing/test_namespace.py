"""The kit's own rules, without a broker; that it starts and kills real ones is shown in tests/integration."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.errors import BrokerNotReady, UsageError
from pairbus.local.hosts import ProcessHost
from pairbus.testing import Namespace, Pair, VirtualClock


def test_building_a_namespace_touches_nothing(tmp_path: Path) -> None:
    namespace = Namespace("contoso", data=tmp_path / "data", process=True)

    assert not namespace.is_running
    assert list(tmp_path.iterdir()) == []


def test_virtual_clock_and_process_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="leave out process=True or clock"):
        Namespace(process=True, clock=VirtualClock())


@pytest.mark.parametrize(
    "name", ["connection_string", "amqp_address", "http_address", "ca_file", "pid", "data", "faults"]
)
def test_a_namespace_that_is_down_says_so(name: str) -> None:
    with pytest.raises(BrokerNotReady, match=r"namespace contoso .* start\(\)"):
        getattr(Namespace("contoso"), name)


def test_what_needs_a_process_says_how_to_get_one() -> None:
    namespace = Namespace("contoso")

    for act in (namespace.pause, namespace.resume, lambda: namespace.log):
        with pytest.raises(UsageError, match=r"Namespace\('contoso', process=True\)"):
            act()


def test_ending_what_is_down_does_nothing() -> None:
    namespace = Namespace()

    namespace.stop()
    namespace.kill()
    namespace.close()


def test_a_process_that_is_down_cannot_be_paused() -> None:
    host = ProcessHost()

    host.stop()
    host.kill()
    with pytest.raises(BrokerNotReady, match="the broker is down"):
        host.pause()


def test_a_pair_has_two_namespaces_in_processes_unless_given() -> None:
    given = Namespace("mine")
    pair = Pair(secondary=given, queues=["orders"])

    assert pair.primary.name == "primary"
    assert pair.secondary is given
    with pytest.raises(BrokerNotReady, match="the broker is down"):
        pair.primary.pause()

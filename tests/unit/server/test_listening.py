"""Limits and addresses of a listener."""

from __future__ import annotations

import pytest

from pairbus.errors import UsageError
from pairbus.server.sockets.registry import Limits, bind_all, is_loopback_only


def test_bad_limits_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="connections_max must be above 0 and is 0"):
        Limits(connections_max=0)


def test_a_host_is_bound_on_one_port_for_all_its_addresses() -> None:
    sockets = bind_all("localhost", 0)
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
    finally:
        for sock in sockets:
            sock.close()
    assert is_loopback_only("127.0.0.1")
    assert is_loopback_only("localhost")
    assert not is_loopback_only("0.0.0.0")
    with pytest.raises(UsageError, match="no address"):
        bind_all("no-such-host.invalid", 0)

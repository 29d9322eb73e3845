"""The switchboard from outside: asked, used, left as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.errors import PairingError
from pairbus.stage.drill.switch import Switchboard
from pairbus.testing import Namespace

NOBODY = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=R;SharedAccessKey=canary;UseDevelopmentEmulator=true"
CLOUD = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=R;SharedAccessKey=canary"
MINUTE = 60_000


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with Namespace("contoso", queues=["orders", "other"]) as running:
        yield running


def kinds(switchboard: Switchboard) -> list[tuple[str, str | None]]:
    return [(fault["kind"], fault["entity"]) for fault in switchboard._faults()]


def test_a_fault_is_switched_on_with_its_end_and_off_before_it(namespace: Namespace) -> None:
    switchboard = Switchboard(namespace.connection_string)
    assert switchboard.is_offered()

    switchboard.begin("refuse", ["/Orders"], MINUTE)

    [fault] = switchboard._faults()
    assert (fault["kind"], fault["entity"]) == ("refuse", "orders")
    assert 0 < fault["remaining_ms"] <= MINUTE
    assert switchboard.end() == 0
    assert kinds(switchboard) == []
    assert switchboard.end() == 0


def test_faults_of_others_are_never_cleared(namespace: Namespace) -> None:
    switchboard = Switchboard(namespace.connection_string)
    switchboard.begin("refuse", ["orders"], MINUTE)
    namespace.faults.throttle("other", seconds=50)

    rest = switchboard.end()

    assert 0 < rest <= MINUTE
    assert kinds(switchboard) == [("refuse", "orders"), ("throttle", "other")]


def test_faults_that_would_strike_the_drill_too_are_told(namespace: Namespace) -> None:
    switchboard = Switchboard(namespace.connection_string)
    namespace.faults.throttle("other", seconds=50)
    switchboard.check_free(["orders"])

    with pytest.raises(PairingError, match="throttle"):
        switchboard.check_free(["orders", "Other"])
    namespace.faults.black_hole(seconds=50)
    with pytest.raises(PairingError, match="black_hole"):
        switchboard.check_free(["orders"])


def test_a_namespace_without_a_switchboard_says_so() -> None:
    with Namespace("contoso", faults=False) as namespace:
        assert not Switchboard(namespace.connection_string).is_offered()


def test_a_key_without_the_right_is_offered_none(namespace: Namespace) -> None:
    wrong = namespace.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong")

    assert not Switchboard(wrong).is_offered()


def test_the_cloud_is_not_asked() -> None:
    assert not Switchboard(CLOUD).is_offered()


@pytest.mark.promise("M7")
def test_a_primary_that_is_away_is_told_without_its_key() -> None:
    with pytest.raises(PairingError, match="could not be reached") as caught:
        Switchboard(NOBODY).is_offered()

    assert "canary" not in str(caught.value)


def test_TLS_needs_the_authority(namespace: Namespace) -> None:
    secure = namespace.connection_string.replace("UseDevelopmentEmulator=true;", "")

    assert Switchboard(secure, namespace.ca_file).is_offered()
    with pytest.raises(PairingError, match="--ca-file"):
        Switchboard(secure).is_offered()

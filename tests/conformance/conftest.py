"""Fixtures of the conformance suite: one broker process per worker, a queue of its own for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.haste import make_haste
from tests.conformance.sdk import FACES, TRANSPORTS, Bus, endpoint_for

TEST_SECONDS_MAX = 300
_numbers = count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "spec(behaviour, source): the behaviour of Service Bus that a test checks, and where it is described",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS_MAX))


@pytest.fixture(scope="session")
def namespace() -> Iterator[Any]:
    """A broker in its own process, as the official clients would meet it."""
    make_haste()
    from pairbus.testing import Namespace

    with Namespace("contoso", process=True, faults=True) as running:
        yield running


@pytest.fixture
def make_queue(namespace: Any, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Create a queue with a fresh name and the given settings; returns the name."""

    def make(**settings: Any) -> str:
        name = f"q{next(_numbers)}-{request.node.originalname.removeprefix('test_').replace('_', '-')}"[:200]
        namespace.create_queue(name, **settings)
        return name

    return make


@pytest.fixture
def queue(make_queue: Callable[..., str]) -> str:
    """An ordinary queue with default settings."""
    return make_queue()


@pytest.fixture
def session_queue(make_queue: Callable[..., str]) -> str:
    """A queue that requires sessions."""
    return make_queue(requires_session=True)


@pytest.fixture
def admin(namespace: Any) -> Iterator[Any]:
    """The official administration client."""
    with namespace.administration_client() as client:
        yield client


@pytest.fixture
def make_topic(admin: Any) -> Callable[..., str]:
    """Create a topic with subscriptions; a subscription's settings come as a dict, the topic's as ``topic``."""

    def make(topic: dict[str, Any] | None = None, **subscriptions: dict[str, Any]) -> str:
        name = f"topic-{next(_numbers)}"
        admin.create_topic(name, **(topic or {}))
        for subscription, settings in subscriptions.items():
            admin.create_subscription(name, subscription, **settings)
        return name

    return make


@pytest.fixture(params=FACES)
def bus(request: pytest.FixtureRequest, namespace: Any) -> Iterator[Bus]:
    """The official client over plain TCP, once synchronous and once asynchronous."""
    opened = Bus(request.param, endpoint_for("tcp", namespace.connection_string, str(namespace.ca_file)))
    yield opened
    opened.close()


@pytest.fixture(params=[f"{face}-{transport}" for transport in TRANSPORTS for face in FACES])
def any_bus(request: pytest.FixtureRequest, namespace: Any) -> Iterator[Bus]:
    """The official client over every transport it knows."""
    face, transport = request.param.split("-")
    opened = Bus(face, endpoint_for(transport, namespace.connection_string, str(namespace.ca_file)))
    yield opened
    opened.close()


@pytest.fixture
def faults(namespace: Any) -> Iterator[Any]:
    """The fault switchboard, switched off again afterwards."""
    yield namespace.faults
    namespace.faults.clear()

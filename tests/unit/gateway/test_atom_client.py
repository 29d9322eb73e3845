"""The whole official administration client, both flavours, against the API in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.core.exceptions import ClientAuthenticationError

from tests.conformance.admin_cases import (
    NamespaceCases,
    QueueCases,
    RuleCases,
    SubscriptionCases,
    TopicCases,
)
from tests.conformance.admin_kit import FACES, Admin
from tests.unit.gateway.atom_bench import Bench, connection_string


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture(params=FACES)
def admin(request: pytest.FixtureRequest, bench: Bench) -> Iterator[Admin]:
    opened = Admin(request.param, connection_string(), bench.options)
    yield opened
    opened.close()


class TestQueues(QueueCases):
    pass


class TestTopics(TopicCases):
    pass


class TestSubscriptions(SubscriptionCases):
    pass


class TestRules(RuleCases):
    pass


class TestNamespace(NamespaceCases):
    pass


@pytest.mark.long
def test_more_than_a_hundred_queues_come_in_pages(admin: Admin, bench: Bench) -> None:
    names = [f"q{number:03}" for number in range(205)]
    for name in names:
        admin.create_queue(name)
    bench.requests.clear()

    assert [queue.name for queue in admin.list_queues()] == names
    assert len(bench.requests) == 3


def test_a_list_that_fills_its_last_page_ends_there(admin: Admin, bench: Bench) -> None:
    for number in range(100):
        admin.create_queue(f"q{number:03}")
    bench.requests.clear()

    assert len(admin.list_queues()) == 100
    assert len(bench.requests) == 1


def test_empty_lists_are_empty(admin: Admin) -> None:
    assert admin.list_queues() == []
    assert admin.list_topics() == []


@pytest.mark.promise("M1")
def test_wrong_key_is_refused_before_anything_is_told(admin: Admin, bench: Bench) -> None:
    stranger = admin.with_connection_string(connection_string(key="d3Jvbmc="))
    admin.create_queue("q")

    for name in ("q", "missing"):
        with pytest.raises(ClientAuthenticationError) as refused:
            stranger.get_queue(name)
        assert refused.value.status_code == 401
    with pytest.raises(ClientAuthenticationError):
        stranger.create_queue("another")
    with pytest.raises(ClientAuthenticationError):
        stranger.list_queues()

    assert [queue.name for queue in admin.list_queues()] == ["q"]


@pytest.mark.promise("M13")
def test_every_request_leaves_one_audit_event(admin: Admin, bench: Bench) -> None:
    admin.create_topic("t")
    admin.create_subscription("t", "s")
    rule = admin.create_rule("t", "s", "r")
    admin.update_rule("t", "s", rule)
    admin.list_rules("t", "s")
    admin.delete_topic("t")

    peer = "127.0.0.1:49152"
    assert bench.audits == [
        ("create entity", "t", "root", "201", peer),
        ("create subscription", "t/subscriptions/s", "root", "201", peer),
        ("create rule", "t/subscriptions/s/rules/r", "root", "201", peer),
        ("update rule", "t/subscriptions/s/rules/r", "root", "200", peer),
        ("list rules", "t/subscriptions/s/rules", "root", "200", peer),
        ("delete entity", "t", "root", "200", peer),
    ]

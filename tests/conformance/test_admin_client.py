"""The official administration client, both flavours, against a broker over HTTPS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.admin_cases import (
    NamespaceCases,
    QueueCases,
    RuleCases,
    SubscriptionCases,
    TopicCases,
)
from tests.conformance.admin_kit import FACES, Admin


@pytest.fixture(params=FACES)
def admin(request: pytest.FixtureRequest, namespace: Any) -> Iterator[Admin]:
    opened = Admin(
        request.param, namespace.connection_string, lambda face: {"connection_verify": str(namespace.ca_file)}
    )
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

from __future__ import annotations

import pytest

from tests.unit.amqp.peers import Wire


@pytest.fixture
def wire() -> Wire:
    """A connection with one session."""
    return Wire().begun()

"""Moments that reports are asked for."""

from __future__ import annotations

import pytest

from pairbus.cli.reports.engine import moment
from pairbus.errors import UsageError


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "yesterday"])
def test_a_moment_that_no_calendar_has_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="is no moment"):
        moment(text)

"""A signal that ends a report on Spark, where the interpreter loses the interruption."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import pytest

from pairbus.cli.reports import spark_report
from pairbus.cli.reports.spark_report import Interrupted, interruptible

LONG_SECONDS = 30


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interruption_that_was_swallowed_comes_again(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_report, "REPEAT_SECONDS", 0.05)
    monkeypatch.setattr("pairbus.spark.session.end_java", lambda: None)
    before = signal.getsignal(number)

    with pytest.raises(Interrupted) as ended, interruptible():
        with suppress(KeyboardInterrupt):  # as a finalizer does
            os.kill(os.getpid(), number)
            time.sleep(LONG_SECONDS)
        time.sleep(LONG_SECONDS)
        pytest.fail("the report goes on")

    assert ended.value.exit_code == 128 + number
    assert signal.getsignal(number) is before

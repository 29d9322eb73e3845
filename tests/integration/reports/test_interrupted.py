"""Ctrl-C at a terminal while a report runs on Spark."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from tests.integration.reports.ledger_kit import row, write

INTERRUPT = b"\x03"
WAITING_FOR = "comparing the ledgers"


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.long
def test_ctrl_c_ends_a_report_and_java_in_one_sentence(tmp_path: Path) -> None:
    ledger = write(tmp_path / "sent.parquet", [row("sent", str(number)) for number in range(100)])
    command = ["reconcile", "--sent", ledger, "--received", ledger, "--engine", "spark"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "pairbus", *command])
    shown = ""
    started: list[int] = []
    while True:
        try:
            read = os.read(terminal, 65_536)
        except OSError:  # its other side is closed
            break
        shown += read.decode()
        if WAITING_FOR in shown and not started:
            started = children(pid)
            os.write(terminal, INTERRUPT)
    os.close(terminal)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert started
    assert "Traceback" not in shown, shown
    assert "pairbus: stopped by Ctrl-C before the report was done, and Spark with it" in shown
    assert ended == 130
    assert not [one for one in started if is_running(one)]

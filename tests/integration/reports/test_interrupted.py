"""Ctrl-C at a terminal while a report runs on Spark, and SIGTERM while one runs anywhere."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.reports.ledger_kit import row, write
from tests.waiting import wait_until

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


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.long)])
def test_sigterm_leaves_no_temporary_files_of_a_report(engine: str, tmp_path: Path) -> None:
    ledger = write(tmp_path / "sent.parquet", [row("sent", str(number)) for number in range(100)])
    temporary, spool, page = tmp_path / "temporary", tmp_path / "spool", tmp_path / "page.html"
    temporary.mkdir()
    spool.mkdir()
    os.mkfifo(page)  # nobody reads it, so that the report does not end by itself
    command = [
        "reconcile",
        "--sent",
        ledger,
        "--received",
        ledger,
        "--spool",
        str(spool),
        "--html",
        str(page),
    ]
    report = subprocess.Popen(
        [sys.executable, "-m", "pairbus", *command, "--engine", engine],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    awaited = "pairbus-spool-*" if engine == "local" else "pairbus-spark-*"
    wait_until(lambda: list(temporary.glob(awaited)), "it has temporary files", 120)

    report.terminate()
    shown = report.communicate(timeout=150)[1]

    assert (report.returncode, "Traceback" in shown) == (128 + signal.SIGTERM, False), shown
    if engine == "spark":
        assert "stopped by SIGTERM before the report was done, and Spark with it" in shown
    assert [found.name for found in temporary.iterdir()] == []

"""Around Spark: memory that fits the machine, errors in one line, a line of progress for people alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pairbus.cli import spark_report
from pairbus.cli.spark_report import (
    MEMORY_MB_MAX,
    MEMORY_MB_MIN,
    check_master,
    check_outputs,
    driver_memory,
    plain,
)
from pairbus.errors import PairbusError, UsageError


@pytest.mark.parametrize(("machine_gb", "megabytes"), [(1, MEMORY_MB_MIN), (16, 4_096), (512, MEMORY_MB_MAX)])
def test_a_report_takes_a_quarter_of_the_memory_within_bounds(
    monkeypatch: pytest.MonkeyPatch, machine_gb: int, megabytes: int
) -> None:
    told = {"SC_PHYS_PAGES": machine_gb << 18, "SC_PAGE_SIZE": 4_096}
    monkeypatch.setattr(os, "sysconf", told.__getitem__)
    assert driver_memory() == f"{megabytes}m"


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (
            "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///data/a%20b/x.parquet. SQLSTATE: KD001",
            UsageError,
            "/data/a b/x.parquet cannot be read: it is damaged",
        ),
        ("java.io.IOException: No space left on device", PairbusError, "ran out of disk space"),
        ("java.lang.OutOfMemoryError: Java heap space", PairbusError, "larger --driver-memory"),
        ("Job aborted.\n\tat org.apache.spark", PairbusError, "Spark gave up: Job aborted."),
    ],
)
def test_M15_what_java_says_becomes_one_line(text: str, kind: type[PairbusError], says: str) -> None:
    error = plain(RuntimeError(text))
    assert type(error) is kind
    assert says in str(error)
    assert "\n" not in str(error)


def test_progress_is_shown_to_nobody_but_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with spark_report.watched("starting Spark", None):
        pass
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with spark_report.watched("starting Spark", None):
        pass
    told = capsys.readouterr()
    assert told.out == ""
    assert "starting Spark … 0 s" in told.err
    assert told.err.endswith("\r\x1b[2K")


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_outputs([str(tmp_path / "page.html"), None], [str(tmp_path / "new"), None, "s3a://bucket/x"])
    with pytest.raises(UsageError, match="there is no directory"):
        check_outputs([str(tmp_path / "new" / "page.html")], [])
    with pytest.raises(UsageError, match="it is a file"):
        check_outputs([], [str(tmp_path / "file")])


def test_M15_a_master_that_is_none_is_told_without_starting_java() -> None:
    for master in (
        "local",
        "local[2]",
        "local[*,4]",
        "local-cluster[2,1,1024]",
        "yarn",
        "k8s://https://host:6443",
    ):
        check_master(master)
    for master in ("nonsense", "http://host:7077", "spark://host", "mesos://host:5050", ""):
        with pytest.raises(UsageError, match="is no Spark master"):
            check_master(master)
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://127.0.0.1:{server.getsockname()[1]}")
        port = server.getsockname()[1]
    with pytest.raises(PairbusError, match="no Spark master answers") as refused:
        check_master(f"spark://127.0.0.1:{port}")
    assert not isinstance(refused.value, UsageError)

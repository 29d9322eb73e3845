"""Around Spark: memory that fits the machine, errors in one line, a line of progress for people alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import click
import pytest
from pyspark.errors import StreamingQueryException

from pairbus.cli.capture import capture
from pairbus.cli.kit.spark import java_ended, own_error, spark_errors, spark_settings
from pairbus.cli.pairing.syphon import syphon
from pairbus.cli.reports import spark_report
from pairbus.cli.reports.cost import cost
from pairbus.cli.reports.engine import check_outputs
from pairbus.cli.reports.reconcile import reconcile
from pairbus.cli.reports.spark_report import (
    MEMORY_MB_MAX,
    MEMORY_MB_MIN,
    check_master,
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


@pytest.mark.promise("M15")
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
def test_what_java_says_becomes_one_line(text: str, kind: type[PairbusError], says: str) -> None:
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


@pytest.mark.promise("M15")
def test_a_master_that_is_none_is_told_without_starting_java() -> None:
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


def test_settings_for_spark_are_taken_apart_and_checked() -> None:
    assert spark_settings(["spark.a=1", "spark.b=x=y"]) == {"spark.a": "1", "spark.b": "x=y"}
    for wrong in ("spark.a", "driver.memory=1g"):
        with pytest.raises(UsageError, match="expected spark.KEY=VALUE"):
            spark_settings([wrong])


@pytest.mark.parametrize(
    "command", [capture, reconcile, syphon, cost.commands["report"], cost.commands["what-if"]]
)
def test_every_command_on_spark_takes_settings(command: click.Command) -> None:
    assert "--conf" in {name for parameter in command.params for name in parameter.opts}


STREAM_FAILED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR]
Traceback (most recent call last):
  File "x.py", line 3, in func
    raise mismatch
pairbus.spark.connector.identity.CheckpointMismatch: checkpointLocation belongs to another 'orders'
 SQLSTATE: 38000"""


def test_an_error_of_ours_in_a_worker_is_told_as_it_is() -> None:
    told = own_error(STREAM_FAILED)

    assert isinstance(told, UsageError)
    assert str(told) == "checkpointLocation belongs to another 'orders'"
    assert type(own_error("x\npairbus.errors.PairbusError: the key was refused\n")) is PairbusError
    assert own_error("java.lang.Exception: pairbus.errors.UsageError: quoted") is None


def test_a_java_process_that_was_killed_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its port is closed then: without a look at the process that would be told as a namespace that cannot be reached."""
    monkeypatch.setattr("pairbus.spark.session.java_exit", lambda seconds: -9)

    with (
        pytest.raises(PairbusError, match=r"Java process .* was killed by signal 9 \(SIGKILL\)"),
        spark_errors(),
    ):
        raise ConnectionRefusedError(111, "Connection refused")
    assert "exit code 1" in java_ended(1)

    monkeypatch.setattr("pairbus.spark.session.java_exit", lambda seconds: None)
    with pytest.raises(ConnectionRefusedError), spark_errors():
        raise ConnectionRefusedError(111, "Connection refused")


NO_WORKER = "Job aborted due to stage failure: …\nCaused by: org.apache.spark.SparkException: Python worker failed to connect back."
LOG_UPDATE = "[STREAM_FAILED] Query terminated with exception\n\tat java.base/x\nCaused by: java.io.IOException: No space left on device\n\tat y"


def test_a_python_worker_that_did_not_start_is_one_sentence_where_the_next_start_goes_on() -> None:
    with pytest.raises(PairbusError, match="Python worker failed to connect back.; the next start goes on"), spark_errors("the next start goes on"):  # fmt: skip
        raise StreamingQueryException(NO_WORKER)


def test_what_only_spark_knows_is_one_sentence_where_the_next_start_goes_on() -> None:
    with pytest.raises(PairbusError) as told, spark_errors("the next start goes on"):
        raise StreamingQueryException(LOG_UPDATE)
    assert (
        str(told.value)
        == "Spark stopped: java.io.IOException: No space left on device; the next start goes on"
    )
    with pytest.raises(StreamingQueryException), spark_errors():
        raise StreamingQueryException(LOG_UPDATE)

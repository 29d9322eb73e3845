"""``spark-submit``: on this machine, and on a cluster whose workers have nothing but the packaged environment.

The short form is elsewhere: the format is found by its name in test_spark_source.py, the key in the environment in the
unit tests of options, two copies of a task in test_spark_sink.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from pairbus.spark.java import find_java
from tests.integration.spark.contract import Bus, ids, key_is_nowhere_below, running_bus
from tests.spark_cluster import SparkCluster, packaged_environment

JOB = Path(__file__).parent / "submit_job.py"
SUBMIT_SECONDS = 240
SPARK_HOME = Path(pyspark.__file__).parent


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    with running_bus() as running:
        key = ";".join(
            part for part in running.ns.connection_string.split(";") if not part.startswith("Endpoint=")
        )
        monkeypatch.setenv("ORDERS_KEY", key)
        yield running


def submit(bus: Bus, environment: dict[str, str], place: Path, *arguments: str) -> str:
    namespace = bus.ns.amqp_address
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--conf", "spark.ui.enabled=false"]
    split = arguments.index("--")
    command += [*arguments[:split], str(JOB), namespace, *arguments[split + 1 :]]
    done = subprocess.run(
        command,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SUBMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_is_submitted_with_the_format_found_by_name_and_the_key_in_the_environment(
    bus: Bus, tmp_path: Path
) -> None:
    source, sink = bus.queue(), bus.queue(requires_duplicate_detection=True)
    bus.send(source, 0, 30)
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java(os.environ)),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }

    said = submit(bus, environment, tmp_path, "--master", "local[2]", "--", source, sink, str(tmp_path))

    assert sorted(bus.left(sink)) == sorted(ids(30))
    assert bus.left(source) == []
    assert bus.key not in said
    key_is_nowhere_below(tmp_path, bus.key)


@pytest.mark.promise("D3")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_a_cluster_with_the_packaged_environment_a_speculative_copy_adds_only_its_rows(
    bus: Bus, tmp_path: Path
) -> None:
    """Two copies of a task send its rows twice at the most; where duplicates are detected, once.

    The environment travels with the job as an archive; the driver runs from the directory that holds it.
    """
    package = tmp_path / "package"
    python = packaged_environment(package)
    with tarfile.open(package / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(package / "environment", ".")
    carried = ("--archives", "environment.tar.gz#environment")
    copying = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.executor.memory": "600m",
        "spark.driver.host": "127.0.0.1",
    }
    settings = [word for name, value in copying.items() for word in ("--conf", f"{name}={value}")]
    with SparkCluster(tmp_path / "cluster", python) as cluster:
        environment = {**cluster.environment, "PYSPARK_PYTHON": "./environment/bin/python"}
        for number, (detects, bound) in enumerate(((False, 2), (True, 1))):
            source, sink = bus.queue(), bus.queue(requires_duplicate_detection=detects)
            bus.send(source, 0, 40)
            marker = tmp_path / f"copied-{number}"
            job = [source, sink, str(tmp_path / f"checkpoint-{number}"), "--slow", str(marker)]

            submit(bus, environment, package, "--master", cluster.url, *carried, *settings, "--", *job)

            found = Counter(bus.left(sink))
            assert marker.exists(), "no task was copied"
            assert set(found) == set(ids(40))
            assert max(found.values()) <= bound
            # Only the first task, a quarter of the rows, was copied.
            assert sum(found.values()) - 40 <= (0 if detects else 10)
            assert bus.left(source) == []
        assert list(cluster.work.glob("*/*/environment/bin/python")), "executors ran what they carried"

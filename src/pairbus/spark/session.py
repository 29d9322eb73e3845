"""A Spark session that starts quietly, fits a laptop, and keeps secrets out of what it shows."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import PairbusError, UsageError
from pairbus.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*,4]"
"""Every core; a task whose Python worker dies is tried again, as on a cluster."""
DRIVER_MEMORY: Final = "1g"
SHUFFLE_PARTITIONS_PER_CORE: Final = 4
SECRET_NAMES: Final = "(?i)secret|password|token|access[.]?key|connectionstring|credential"  # noqa: S105
"""Options and settings with such names are shown as ``*********(redacted)``."""
SECRET_TEXT: Final = "(?i)SharedAccess(Key|Signature)=[^;,\\s\\]\\)}]+"  # noqa: S105
"""A key inside any other text."""
LOG_LINES_SHOWN: Final = 15
JAVA_END_SECONDS_MAX: Final = 10.0
"""How long Java may take to end when it is asked to. Then it is killed."""
_LOG4J: Final = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def spark_session(
    name: str = "pairbus",
    *,
    master: str | None = None,
    memory: str = DRIVER_MEMORY,
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> SparkSession:
    """The running session, or a new one.

    Args:
        name: Shown in Spark's own pages.
        master: A Spark master; every core of this machine unless given, here or by spark-submit.
        memory: Of the driver. Only the first session of a process can choose it.
        settings: More Spark settings; they win over ours.
        log: Where Java's output goes; a file in the temporary directory unless given.

    Raises:
        UsageError: Spark or Java is not installed.
        PairbusError: The session could not be made; the text gives the end of Java's log.
    """
    try:
        from pyspark import SparkContext, accumulators
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageError(
            "Spark is not installed: pip install 'pairbus[spark]' (in a clone: pip install '.[spark]')"
        ) from None
    if SparkContext._active_spark_context is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        # Somebody else's session (spark-submit, a notebook): its settings are theirs.
        return SparkSession.builder.appName(name).getOrCreate()
    os.environ["JAVA_HOME"] = str(find_java(os.environ))
    # Workers run this interpreter, not whatever python3 is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # They would print a traceback when Java ends; ``java_exit`` tells that.
    for name_of_server in ("AccumulatorServer", "AccumulatorTCPServer", "AccumulatorUnixServer"):
        server: Any = getattr(accumulators, name_of_server, None)
        if server is not None:
            server.handle_error = lambda *_: None
    work = Path(tempfile.mkdtemp(prefix="pairbus-spark-"))
    log = log or work / "spark.log"
    builder = SparkSession.builder.appName(name)
    for key, value in {**_settings(master, memory, work), **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        with _stderr_to(log):
            session = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001 - Java, its gateway and Spark each have their own ways to fail
        raise PairbusError(f"Spark did not start: {_reason(error)}\n{_tail(log)}") from None
    except KeyboardInterrupt:
        shutil.rmtree(work, ignore_errors=True)
        raise
    # Nothing is left behind; a session that did not start leaves its log for the person who looks for the reason.
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    return session


def java_exit(seconds: float = 0.0) -> int | None:
    """The exit code of the Java process that this process started for Spark; None while it runs, or is somebody else's.

    Args:
        seconds: How long to wait for its end: an error of the connection to Java may come before the end shows.
    """
    from subprocess import TimeoutExpired

    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    try:
        return int(process.wait(seconds))
    except TimeoutExpired:
        return None


def end_java() -> None:
    """End the Java process that this process started for Spark, if there is one. The connection to it need not work."""
    from subprocess import TimeoutExpired

    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        _kill_starting_java()
        return
    process.terminate()  # Java removes its temporary files
    try:
        process.wait(JAVA_END_SECONDS_MAX)
    except TimeoutExpired:
        process.kill()
        process.wait()


def _kill_starting_java() -> None:
    """End a Java whose start was interrupted: PySpark does not know it yet, and it would stay for ever."""
    for task in Path("/proc/self/task").glob("*/children"):
        for child in task.read_text().split():
            with suppress(OSError):
                if b"pyspark-shell" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)


def redact(spark: SparkSession) -> None:
    """Let a session that somebody else made hide secrets, as far as a running one can still be told."""
    hidden = spark.conf.get("spark.sql.redaction.options.regex", "") or ""
    if SECRET_NAMES not in hidden:
        both = f"{hidden}|{SECRET_NAMES}" if hidden else SECRET_NAMES
        spark.conf.set("spark.sql.redaction.options.regex", both)
    # This one is one pattern for everything; who has chosen it keeps it.
    if not spark.conf.get("spark.sql.redaction.string.regex", ""):
        spark.conf.set("spark.sql.redaction.string.regex", SECRET_TEXT)


def _settings(master: str | None, memory: str, work: Path) -> dict[str, str]:
    configuration = work / "log4j2.properties"
    configuration.write_text(_LOG4J, encoding="utf-8")
    java_options = f"-Dlog4j2.configurationFile={configuration} -XX:+UseSerialGC"
    cores = os.cpu_count() or 1
    settings = {
        "spark.master": master or os.environ.get("PAIRBUS_SPARK_MASTER", LOCAL_MASTER),
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": java_options,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS_PER_CORE * cores),
        "spark.sql.adaptive.enabled": "true",
        "spark.speculation": "false",
        "spark.redaction.regex": SECRET_NAMES,
        "spark.redaction.string.regex": SECRET_TEXT,
        "spark.sql.redaction.string.regex": SECRET_TEXT,
        "spark.sql.redaction.options.regex": f"{SECRET_NAMES}|url",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
    }
    if settings["spark.master"].startswith("local["):
        # A machine without a name of its own, or behind a VPN, must not matter for work that stays on it.
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
    return settings


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Let a process that is started meanwhile write its errors to a file: Java has no quiet switch of its own."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _reason(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_LINES_SHOWN:])

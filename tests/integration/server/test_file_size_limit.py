"""A process that may not make files as large as the broker needs: its limit is named, and not the disk."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.errors import StoreFailed
from pairbus.server.main import _file_size_hint, _way_out
from tests.integration.server.test_process import WAIT_SECONDS

pytestmark = pytest.mark.timeout(300)
MEGABYTE = 1 << 20
CONFIG = '{"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [{"Name": "orders"}]}]}}'


def refusal(data: Path, limit: int, *more: str) -> str:
    """What a broker says that cannot begin within a file size limit."""
    config = data.parent / "config.json"
    config.write_text(CONFIG)
    process = subprocess.Popen(
        [
            sys.executable, "-m", "pairbus", "serve", "--config", str(config), "--data", str(data), "--amqp", "127.0.0.1:0",
            "--http", "off", *more,
        ],
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    # The interpreter has not begun to write a file yet.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    try:
        _, said = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 3, said
    assert "Traceback" not in said
    return said.splitlines()[-1]


@pytest.mark.parametrize("limit", [64 << 10, 15 * MEGABYTE])
@pytest.mark.parametrize("more", [(), ("--audit",)])
def test_a_new_namespace_names_the_limit_and_not_the_disk(
    tmp_path: Path, limit: int, more: tuple[str, ...]
) -> None:
    said = refusal(tmp_path / "data", limit, *more)

    shown = "64 kB" if limit < MEGABYTE else f"{limit // MEGABYTE} MB"
    assert f"the file size limit of this process is {shown}: raise the limit (`ulimit -f unlimited`" in said
    assert "needs files of 16 MB" in said
    assert "does not give" not in said
    assert not (tmp_path / "data" / "store").exists()


def test_an_error_that_comes_from_the_limit_names_it() -> None:
    failed = StoreFailed("no new segment could be made")
    failed.__cause__ = OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    for said in (_way_out(failed.__cause__), _file_size_hint(failed)):
        assert "file size limit" in said
        assert "raise the limit (`ulimit -f unlimited`" in said
        assert "--data" not in said
    assert _file_size_hint(StoreFailed("the disk is full")) == ""

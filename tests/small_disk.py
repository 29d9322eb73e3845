"""A file system of a few kilobytes or megabytes, to see what a disk does that is really full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest


def mount_command(directory: Path, size: str) -> list[str]:
    return ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]


@cache
def own_mounts() -> list[str]:
    """The beginning of a command that may mount: what it mounts, it alone sees, and it ends with it.

    Root may always do so, another user in a user namespace. A container may forbid both: the test is skipped there, which the last
    lines of a run say.
    """
    for command in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        trial = [*command, *mount_command(Path("/tmp"), "64k")]
        if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("this machine forbids to mount a small disk, to root and in a user namespace")


@contextlib.contextmanager
def mounted(directory: Path, size: str) -> Iterator[None]:
    """A small disk that every process sees, such as a server that runs already: only root may mount it."""
    command = mount_command(directory, size)
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk that a server sees needs root")
    try:
        yield
    finally:
        # Lazily: a process that still uses it, because a test failed, keeps it until it ends, and nobody else sees it any more.
        subprocess.run(["umount", "--lazy", str(directory)], check=True)

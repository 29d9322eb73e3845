"""Standard streams that are closed or full end a command with one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.parametrize("arguments", [["--help"], [], ["connection-string", "--help"]])
def test_output_that_cannot_be_written_is_one_sentence(arguments: list[str]) -> None:
    with FULL.open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "pairbus", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert ended.stderr == "pairbus: the output cannot be written: No space left on device\n"
    assert ended.returncode == 3


@pytest.mark.parametrize("arguments", [["send", "q"], ["send", "q", "--lines"]])
def test_standard_input_that_is_closed_is_one_sentence(arguments: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pairbus", *arguments],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.close(0),
    )

    assert ended.stderr == "pairbus: standard input is closed: give a BODY or --file\n"
    assert ended.returncode == 2

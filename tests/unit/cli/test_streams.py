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


def test_an_answer_into_a_closed_output_is_one_sentence() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pairbus", "cost", "estimate"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.close(1),
    )

    assert ended.stderr == "pairbus: the output cannot be written: standard output is closed\n"
    assert ended.returncode == 3


@pytest.mark.parametrize(("closed", "code"), [((1,), 3), ((2,), 0), ((0, 1, 2), 3)])
def test_a_command_goes_on_without_its_output(closed: tuple[int, ...], code: int) -> None:
    """Every command may ask whether a person watches, print, and start child processes."""
    program = (
        "import click, os, subprocess, sys\n"
        "from pairbus.cli import root\n"
        "@root.root.command('look')\n"
        "def look():\n"
        "    click.echo(f'{sys.stdout.isatty()} {sys.stderr.isatty()}')\n"
        "    print('x', file=sys.stderr)\n"
        "    return subprocess.run(['true']).returncode if os.fstat(1) and os.fstat(2) else 9\n"
        "root.LazyGroup.get_command = lambda self, context, name: look\n"
        "root.main(['look'])\n"
    )

    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, preexec_fn=close
    )

    assert ended.returncode == code, ended.stderr


@pytest.mark.parametrize("arguments", [["cost", "estimate"], ["--help"], ["cost", "--help"]])
def test_a_reader_that_has_gone_is_not_the_answer_no(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pairbus", *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")

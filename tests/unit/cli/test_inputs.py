"""A command reads of its input what it can use, and names the limit of what it refuses."""

from __future__ import annotations

import io
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.cli.entities import bodies
from pairbus.errors import UsageError

MEMORY = 1 << 30
ENDLESS = "/dev/zero"
NAMESPACE = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true;Namespace=n"


def with_endless_input(*arguments: str) -> subprocess.CompletedProcess[str]:
    with Path(ENDLESS).open("rb") as endless:
        return subprocess.run(
            [sys.executable, "-m", "pairbus", *arguments],
            stdin=endless,
            capture_output=True,
            text=True,
            check=False,
            env={"PAIRBUS_PRIMARY": NAMESPACE},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("send", "q"), "standard input is too large: at most 100 MB fit into one message"),
        (("send", "q", "--file", ENDLESS), "--file /dev/zero is too large: at most 100 MB fit"),
        (("peek", "q", "--ready-file", ENDLESS), "/dev/zero is no ready file of a broker"),
        (
            ("cost", "estimate", "--prices", ENDLESS),
            "the price file /dev/zero is larger than 4,194,304 bytes",
        ),
        (("serve", "--config", ENDLESS), "--config /dev/zero is larger than 16777216 bytes"),
    ],
)
def test_an_input_without_an_end_is_refused(arguments: tuple[str, ...], why: str) -> None:
    ended = with_endless_input(*arguments)

    assert ended.returncode == 2, ended.stderr
    assert why in ended.stderr
    assert "Traceback" not in ended.stderr


class Lines(io.TextIOWrapper):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_BYTES_MAX", 4)


@pytest.mark.usefixtures("small")
@pytest.mark.uncompiled
def test_lines_before_one_that_is_too_large_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Lines(b"abcd\r\nef\nghijk\nl\n"))
    groups = bodies.together(bodies.bodies_of(None, None, True, 1), 100)

    assert next(groups) == [b"abcd", b"ef"]
    with pytest.raises(
        UsageError, match="^line 3 of standard input is too large: .*the lines before it were sent"
    ):
        next(groups)


@pytest.mark.usefixtures("small")
@pytest.mark.uncompiled
@pytest.mark.parametrize(
    ("typed", "is_taken"), [(b"abcd", True), (b"abcd\n", True), (b"abcde", False), (b"abcd\nf", False)]
)
def test_the_line_break_of_a_shell_does_not_count(
    typed: bytes, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Lines(typed))
    if is_taken:
        assert next(bodies.bodies_of("-", None, False, 1)) == b"abcd"
    else:
        with pytest.raises(UsageError, match="standard input is too large"):
            bodies.bodies_of("-", None, False, 1)


def test_large_bodies_are_held_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "TOGETHER_BYTES", 6)

    assert list(bodies.together(["ab", "cd", "ef", "ghijkl", "m"], 2)) == [
        ["ab", "cd"],
        ["ef", "ghijkl"],
        ["m"],
    ]

"""The documents are true: their blocks run, their links lead somewhere, the reference leaves nothing out.

A fenced block runs when its info string says so: ```` ```python run ```` is a program, ```` ```console run ```` a session
whose lines with ``$`` are typed into one shell. Each block gets an empty directory and may take a minute.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import pairbus.errors
from pairbus.testing import Namespace
from pairbus.testing.http import ManagementClient

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK_SECONDS_MAX = 60
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block that wants to be run."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            words = match["info"].split()
            if words[1:] == ["run"]:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(page, line, words[0], match["text"]))
    return found


def command_of(block: Block) -> list[str]:
    if block.language == "python":
        return [sys.executable, "-c", block.text]
    assert block.language == "console", f"{block}: only python and console blocks can run"
    typed = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    assert typed, f"{block}: a console block needs lines that begin with '$ '"
    return ["bash", "-euo", "pipefail", "-c", "\n".join(typed)]


@pytest.mark.parametrize("block", blocks(), ids=str)
@pytest.mark.timeout(BLOCK_SECONDS_MAX + 15)
def test_block_runs(block: Block, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "share"),
    }
    output = tmp_path / "output"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            command_of(block), cwd=tmp_path, env=environment, stdout=sink, stderr=sink, start_new_session=True
        )
    try:
        code = process.wait(BLOCK_SECONDS_MAX)
    finally:
        end_group(process)

    assert code == 0, f"{block} ended with {code}:\n{output.read_text(errors='replace')}"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """A session may leave a broker behind; nothing of it outlives the test."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_some_blocks_run() -> None:
    assert {block.page.name for block in blocks()} >= {"README.md", "tutorial.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [match["target"] for match in _LINK.finditer(_FENCE.sub("", page.read_text()))]
    local = [target.split("#")[0] for target in targets if "://" not in target and not target.startswith("#")]

    broken = [target for target in local if not (page.parent / target).exists()]

    assert broken == []


def test_every_error_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    kinds = [kind for _, kind in inspect.getmembers(pairbus.errors, inspect.isclass)]
    mine = [kind for kind in kinds if issubclass(kind, pairbus.errors.PairbusError)]

    missing = [kind.__name__ for kind in mine if f"`{kind.__name__}`" not in page]
    wrong = [
        kind.__name__
        for kind in mine
        if issubclass(kind, pairbus.errors.Refusal)
        and kind is not pairbus.errors.Refusal
        and not re.search(rf"`{kind.__name__}` \| `{re.escape(kind.condition)}` \| {kind.status} \|", page)
    ]

    assert (missing, wrong) == ([], [])


def test_every_make_target_has_a_line_of_help() -> None:
    text = (ROOT / "Makefile").read_text()
    listed = set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
    declared = set(re.sub(r"\\\n", " ", text).split(".PHONY:")[1].split("\n")[0].split())

    assert declared == listed


def test_every_command_and_option_is_in_the_reference() -> None:
    from pairbus.cli.root import COMMANDS, root

    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    missing = []
    with click.Context(root) as context:
        for name in COMMANDS:
            command = root.get_command(context, name)
            assert command is not None
            section = page.partition(f"## `pairbus {name}`")[2].partition("\n## ")[0]
            options = [text for param in command.params for text in (*param.opts, *param.secondary_opts)]
            missing += [
                f"{name} {text}" for text in options if not re.search(rf"`{re.escape(text)}[ `]", section)
            ]
            missing += [name] * (not section)

    assert missing == []


@pytest.mark.namespace(queues=["orders"])
def test_every_metric_is_in_the_reference(namespace: Namespace) -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    text = (
        ManagementClient(namespace.http_address, namespace.connection_string)
        .request("GET", "/metrics")
        .decode()
    )
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))

    wrong = [name for name, kind in kinds.items() if f"| `{name}` | {kind} |" not in page]
    stale = [name for name in re.findall(r"^\| `(pairbus_\w+)`", page, re.MULTILINE) if name not in kinds]

    assert kinds
    assert (wrong, stale) == ([], [])

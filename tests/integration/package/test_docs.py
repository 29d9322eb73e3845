"""The documents are true: their blocks run, their links lead somewhere, the reference leaves nothing out.

A fenced block runs when its info string says so: ```` ```python run ```` is a program, ```` ```console run ```` a session
whose lines with ``$`` are typed into one shell. With a third word, ``postgresql``, the variable ``PAIRBUS_STORE`` names an empty
database for it. Each block gets an empty directory and may take a minute, four where others keep the machine busy.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from tests.postgres_kit import shared_server
from tools import reference

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK_SECONDS_MAX = 240
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block that wants to be run."""

    page: Path
    line: int
    language: str
    text: str
    needs_database: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            words = match["info"].split()
            if words[1:2] == ["run"]:
                assert words[2:] in ([], ["postgresql"]), f"{page}: {match['info']!r} is not known"
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(page, line, words[0], match["text"], bool(words[2:])))
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
    if block.needs_database:
        environment["PAIRBUS_STORE"] = shared_server().new_database(f"block_{uuid4().hex}")
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


@pytest.mark.parametrize("name", reference.PAGES)
def test_generated_page_is_up_to_date(name: str) -> None:
    assert (reference.FOLDER / name).read_text() == reference.PAGES[name](), (
        "run `make docs` to write it anew"
    )


def test_the_page_of_events_has_those_of_a_node_and_no_others() -> None:
    source = ROOT / "src" / "pairbus"
    rooms = [source / "server" / "cluster", source / "storage" / "table"]
    text = "\n".join(path.read_text() for room in rooms for path in room.rglob("*.py"))
    page = (reference.FOLDER / "events.md").read_text()

    assert set(re.findall(r"^\| `(cluster\.\w+)`", page, re.MULTILINE)) == set(
        re.findall(r'"event": "(cluster\.\w+)"', text)
    )


def test_every_make_target_has_a_line_of_help() -> None:
    text = (ROOT / "Makefile").read_text()
    listed = set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
    declared = set(re.sub(r"\\\n", " ", text).split(".PHONY:")[1].split("\n")[0].split())

    assert declared == listed

"""Hooks of the site: what the tests and a reader of the source need in a block, and a reader of the site does not.

The words `run` and `postgresql` are for the tests. Prompts would be copied with the commands: a block of commands alone is shown without them. A pipe in the code of a table
needs a backslash wherever else the page is read, and would be shown with it here.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"^( *```[a-z]+) run(?: postgresql)?$", re.MULTILINE)
_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_COMMANDS = re.compile(r"^```console\n((?:\$ .*\n)+)```$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """A page's text as the generator shall see it."""
    return _ROW.sub(_with_plain_pipes, _COMMANDS.sub(_without_prompts, _FENCE.sub(r"\1", markdown)))


def _with_plain_pipes(row: re.Match[str]) -> str:
    return _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])


def _without_prompts(block: re.Match[str]) -> str:
    commands = "".join(line[2:] for line in block[1].splitlines(keepends=True))
    return f"```bash\n{commands}```"

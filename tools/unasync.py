"""Write the synchronous twin of the pairing client from the asynchronous one. ``--check`` only compares.

Files that wait in their own way (``link``, ``runtime``, ``transport``) have a twin written by hand and are left alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "pairbus" / "pairing" / "_async"
TARGET = ROOT / "src" / "pairbus" / "pairing" / "_sync"
BY_HAND = {"__init__.py", "link.py", "runtime.py", "transport.py"}

REPLACEMENTS = [
    (r"azure\.core\.async_paging", "azure.core.paging"),
    (r"AsyncItemPaged", "ItemPaged"),
    (r"azure\.servicebus\.aio\.management", "azure.servicebus.management"),
    (r"azure\.servicebus\.aio", "azure.servicebus"),
    (r"pairbus\.pairing\._async", "pairbus.pairing._sync"),
    (r"pairbus\.aio", "pairbus"),
    (r"pairbus\.sdk\.plain_http_aio", "pairbus.sdk.plain_http"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"\bAwaitable\[([^\[\]]+)\]", r"\1"),
    (r"asynchronous", "synchronous"),
]


def translate(text: str) -> str:
    """The synchronous form of a module."""
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    return text


def formatted(text: str, name: str) -> str:
    """As the formatter and the import sorter would leave it, so that the result passes the linter."""
    ruff = Path(sys.executable).with_name("ruff")
    for arguments in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        command = [str(ruff), *arguments, "--stdin-filename", name, "-"]
        text = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True, cwd=ROOT
        ).stdout
    return text


def main() -> int:
    """Write or compare."""
    is_check = "--check" in sys.argv
    stale = []
    for source in sorted(SOURCE.glob("*.py")):
        if source.name in BY_HAND:
            continue
        target = TARGET / source.name
        head = f"# Written by tools/unasync.py from _async/{source.name}: edit that file.\n"
        text = formatted(head + translate(source.read_text()), str(target.relative_to(ROOT)))
        if is_check:
            if not target.exists() or target.read_text() != text:
                stale.append(target.name)
        else:
            target.write_text(text)
    if stale:
        print(f"stale twins: {', '.join(stale)}; run tools/unasync.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

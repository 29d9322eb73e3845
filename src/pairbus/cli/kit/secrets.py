"""Connection strings from files: ``PAIRBUS_PRIMARY_FILE`` does for ``PAIRBUS_PRIMARY`` what containers' secrets need."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from pairbus.errors import UsageError

NAMES: Final = ("PAIRBUS_PRIMARY", "PAIRBUS_SECONDARY")
SUFFIX: Final = "_FILE"
CHARACTERS_MAX: Final = 65_536


def from_files(environment: MutableMapping[str, str]) -> None:
    """Fill in each connection string that is not set itself and whose file is named. Raises UsageError."""
    for name in NAMES:
        file = environment.get(name + SUFFIX)
        if file and not environment.get(name):
            environment[name] = _read(name + SUFFIX, file)


def _read(name: str, file: str) -> str:
    """A connection string alone in a file, or a broker's ready file. Errors never show what was read."""
    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(CHARACTERS_MAX).strip()
    except OSError as error:
        raise UsageError(f"{name} names {file}, which cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if text.startswith("{"):
        text = _from_ready(text)
    if "\n" in text or "endpoint=" not in text.lower():
        raise UsageError(
            f"{name} names {file}, which holds no connection string: it needs Endpoint=sb://… alone, or a broker's ready file"
        )
    return text


def _from_ready(text: str) -> str:
    try:
        return str(json.loads(text)["connection_string"])
    except (ValueError, KeyError, TypeError):
        return ""

"""The page's own files: package data, read once, known by name."""

from __future__ import annotations

from importlib import resources
from typing import Final

from pairbus.web.responses import tag_of

INDEX: Final = "index.html"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Asset:
    __slots__ = ("body", "content_type", "etag")

    def __init__(self, name: str, body: bytes) -> None:
        self.body = body
        self.content_type = _TYPES[name.rpartition(".")[2]]
        self.etag = tag_of(body)


def load() -> dict[str, Asset]:
    """Every file of the page by its name."""
    found: dict[str, Asset] = {}
    for file in resources.files("pairbus.web").joinpath("static").iterdir():
        if file.name.rpartition(".")[2] in _TYPES:
            found[file.name] = Asset(file.name, file.read_bytes())
    return found

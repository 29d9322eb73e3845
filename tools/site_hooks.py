"""Hooks of the site: the words `run` and `postgresql` of a block are for the tests, not for the reader's highlighter."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^( *```[a-z]+) run(?: postgresql)?$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """A page's text as the generator shall see it."""
    return _FENCE.sub(r"\1", markdown)

"""Answers of the page, each with the headers that keep foreign content inert (M8)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from pairbus.gateway.http import HttpResponse

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""Everything comes from here, nothing inline, nobody frames the page."""
HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


def content(body: bytes, content_type: str, etag: str, asked: str | None) -> HttpResponse:
    """A file or a picture of the state; 304 when the browser has it already."""
    headers = [("Content-Type", content_type), ("Cache-Control", "no-cache"), ("ETag", etag), *HEADERS]
    if asked == etag:
        return HttpResponse(304, headers, b"")
    return HttpResponse(200, headers, body)


def tag_of(body: bytes) -> str:
    """The entity tag of some bytes."""
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def picture(value: Mapping[str, object], asked: str | None) -> HttpResponse:
    """A state that the page asks for again and again. The page keeps its tag itself: nothing is left in a cache."""
    body = encode(value)
    answer = content(body, "application/json", tag_of(body), asked)
    answer.headers[1] = ("Cache-Control", "no-store")
    return answer


def told(value: Mapping[str, object], status: int = 200) -> HttpResponse:
    """The outcome of something done."""
    headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store"), *HEADERS]
    return HttpResponse(status, headers, encode(value))


def refused(status: int, error: str) -> HttpResponse:
    """What is wrong and what to do."""
    return told({"error": error}, status)


def encode(value: Mapping[str, object]) -> bytes:
    """JSON that is safe even where somebody takes it for HTML."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode("ascii")

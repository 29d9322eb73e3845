"""Answers of the page, each with the headers that keep foreign content inert (M8)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from typing import Final

from pairbus.gateway.http import HttpResponse

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Everything comes from here, nothing inline, nobody frames the page, and no text can become markup or script."""
MOMENT_MS: Final = 500
"""How old a shared picture may be: less than the page's own interval (M15)."""
KEPT_MAX: Final = 16
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
    return _pictured(body, tag_of(body), asked)


def _pictured(body: bytes, tag: str, asked: str | None) -> HttpResponse:
    answer = content(body, "application/json", tag, asked)
    answer.headers[1] = ("Cache-Control", "no-store")
    return answer


class Album:
    """Costly pictures, made once for all pages that show the same thing at the same moment."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[int, bytes, str]] = {}

    def find(self, key: Hashable, now: int, asked: str | None) -> HttpResponse | None:
        """The picture that was kept for a key less than a moment ago."""
        kept = self._kept.get(key)
        return (
            _pictured(kept[1], kept[2], asked)
            if kept is not None and 0 <= now - kept[0] < MOMENT_MS
            else None
        )

    def keep(self, key: Hashable, value: Mapping[str, object], now: int, asked: str | None) -> HttpResponse:
        """Answer with a picture, and give the same one to whoever else asks within a moment."""
        body = encode(value)
        self._kept.pop(key, None)
        while len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (now, body, tag := tag_of(body))
        return _pictured(body, tag, asked)


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


def wish_of(body: bytes) -> dict[str, object]:
    """A request's body: one JSON object of text that can be written down. Raises ValueError."""
    problem = "The body is not a JSON object."
    try:
        wish = json.loads(body)
        # Half a surrogate pair is valid JSON, and no text: it would break whatever encodes it later.
        json.dumps(wish, ensure_ascii=False).encode()
        if isinstance(wish, dict):
            return wish
    except UnicodeEncodeError:
        problem = "The body holds half a character (a lone surrogate)."
    except RecursionError:
        problem = "The body is nested too deeply."
    except ValueError:
        problem = "The body is not JSON."
    raise ValueError(problem)

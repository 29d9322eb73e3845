"""HTTP responses of the page, each with the headers that keep foreign content inert (M8)."""

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
MAX_AGE_MS: Final = 500
"""How old a shared snapshot may be: less than the page's polling interval (M15)."""
KEPT_MAX: Final = 16
"""Snapshots in the cache; the oldest goes when there are more."""
JSON: Final = "application/json"
HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


def file_response(body: bytes, content_type: str, etag: str, known_tag: str | None) -> HttpResponse:
    """One of the page's files; 304 when the browser has it already."""
    return _tagged(body, content_type, etag, known_tag, "no-cache")


def _tagged(
    body: bytes, content_type: str, etag: str, known_tag: str | None, caching: str = "no-store"
) -> HttpResponse:
    headers = [("Content-Type", content_type), ("Cache-Control", caching), ("ETag", etag), *HEADERS]
    return HttpResponse(304, headers, b"") if known_tag == etag else HttpResponse(200, headers, body)


def tag_of(body: bytes) -> str:
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def snapshot_response(value: Mapping[str, object], known_tag: str | None) -> HttpResponse:
    """A state that the page polls; 304 when it has not changed. The page keeps its tag itself: no cache stores it."""
    body = encode(value)
    return _tagged(body, JSON, tag_of(body), known_tag)


class SnapshotCache:
    """Costly snapshots, made once for all pages that show the same thing at the same time."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[int, bytes, str]] = {}

    def find(self, key: Hashable, now: int, known_tag: str | None) -> HttpResponse | None:
        """The snapshot of a key, if it is younger than MAX_AGE_MS."""
        made_at, body, tag = self._kept.get(key, (now + 1, b"", ""))
        return _tagged(body, JSON, tag, known_tag) if 0 <= now - made_at < MAX_AGE_MS else None

    def keep(
        self, key: Hashable, value: Mapping[str, object], now: int, known_tag: str | None
    ) -> HttpResponse:
        """Keep a snapshot for the next requests, and answer with it."""
        body = encode(value)
        self._kept.pop(key, None)
        while len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (now, body, tag := tag_of(body))
        return _tagged(body, JSON, tag, known_tag)


def json_response(value: Mapping[str, object], status: int = 200) -> HttpResponse:
    headers = [("Content-Type", JSON), ("Cache-Control", "no-store"), *HEADERS]
    return HttpResponse(status, headers, encode(value))


def error_response(status: int, error: str) -> HttpResponse:
    return json_response({"error": error}, status)


def encode(value: Mapping[str, object]) -> bytes:
    """JSON that is safe even where somebody takes it for HTML."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode("ascii")


def parse_body(body: bytes, content_type: str) -> dict[str, object]:
    """A request's body: one JSON object of text that can be encoded again. Raises ValueError."""
    if not content_type.startswith(JSON):
        raise ValueError("The body must be application/json.")
    problem = "The body is not a JSON object."
    try:
        value = json.loads(body)
        # Half a surrogate pair is valid JSON, and no text: it would break the code that encodes it later.
        json.dumps(value, ensure_ascii=False).encode()
        if isinstance(value, dict):
            return value
    except UnicodeEncodeError:
        problem = "The body holds half a character (a lone surrogate)."
    except RecursionError:
        problem = "The body is nested too deeply."
    except ValueError:
        problem = "The body is not JSON."
    raise ValueError(problem)

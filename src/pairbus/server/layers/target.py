"""The two forms in which a request names what it is about (RFC 9112, 3.2)."""

from __future__ import annotations

import re
from typing import Final

_ABSOLUTE: Final = re.compile(rb"https?://", re.IGNORECASE)
_AUTHORITY: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(?::[0-9]{0,5})?")
"""Host and port; user names and passwords have no place in a request (RFC 9110, 4.2.4)."""


def origin_form(target: bytes) -> bytes:
    """Path and query of a target, also of one in absolute form, such as ``https://host/path?query``, which every server must take.

    Microsoft's Java client sends it to open a WebSocket. Its host says nothing that the connection has not said: there is one namespace.
    Everything else comes back as it is, to be judged as a path. Raises ValueError for an absolute form that is none.
    """
    scheme = _ABSOLUTE.match(target)
    if scheme is None:
        return target
    authority = _AUTHORITY.match(target, scheme.end())
    rest = b"#" if authority is None else target[authority.end() :]
    if (rest and rest[:1] not in (b"/", b"?")) or b"#" in rest:
        raise ValueError(
            "the request's target is not scheme://host:port/path?query, without user name, password and fragment"
        )
    return rest if rest.startswith(b"/") else b"/" + rest

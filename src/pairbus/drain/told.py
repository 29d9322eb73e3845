"""How a syphon's news are called among a client's events."""

from __future__ import annotations

from typing import Final

from pairbus.pairing.events import Kind

KINDS: Final = {"drained": Kind.DRAINED, "set_aside": Kind.SET_ASIDE}

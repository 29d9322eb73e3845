"""The pairings of this process: what must not be paired again while it is."""

from __future__ import annotations

import threading
from collections import Counter

from pairbus.errors import AlreadyPairedError
from pairbus.pairing.naming import check_different


class Registry:
    """Which addresses are primaries, and which are secondaries, of the paired clients of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._primaries: Counter[str] = Counter()
        self._secondaries: Counter[str] = Counter()

    def enter(self, primary: str, secondary: str) -> None:
        """Note a pairing. Raises AlreadyPairedError when it would make a chain of pairs; that leaves no trace."""
        check_different(primary, secondary)
        with self._lock:
            if self._primaries[secondary]:
                raise _chain(f"the secondary {secondary} is the primary of another pairing in this process")
            if self._secondaries[primary]:
                raise _chain(f"the primary {primary} is the secondary of another pairing in this process")
            self._primaries[primary] += 1
            self._secondaries[secondary] += 1

    def leave(self, primary: str, secondary: str) -> None:
        """Forget a pairing that has entered."""
        with self._lock:
            self._primaries[primary] -= 1
            self._secondaries[secondary] -= 1


def _chain(what: str) -> AlreadyPairedError:
    return AlreadyPairedError(
        f"{what}: in a chain of pairs messages would wait in a backlog two namespaces away from their entity; "
        "choose a namespace that is not paired"
    )


pairings = Registry()

"""The pairings of this process: what must not be paired again while it is (specification, 3.8)."""

from __future__ import annotations

import threading

from pairbus.errors import AlreadyPairedError
from pairbus.pairing.naming import check_different
from pairbus.pairing.options import SendAvailabilityOptions


class Registry:
    """Which hosts are primaries and which options objects are in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._primaries: dict[str, int] = {}
        self._options: dict[int, SendAvailabilityOptions] = {}

    def enter(self, primary: str, secondary: str, options: SendAvailabilityOptions) -> None:
        """Note a pairing, or say why it cannot be. A refusal leaves no trace."""
        check_different(primary, secondary)
        with self._lock:
            if id(options) in self._options:
                raise AlreadyPairedError("this options object is in use by another client: make one for each")
            if self._primaries.get(secondary):
                raise AlreadyPairedError(
                    f"the secondary {secondary} is the primary of another pairing in this process: chains of pairs "
                    "would hide messages two steps away; choose a namespace that is not paired"
                )
            self._primaries[primary] = self._primaries.get(primary, 0) + 1
            # Keeping the object keeps its id from being given to another one.
            self._options[id(options)] = options

    def leave(self, primary: str, options: SendAvailabilityOptions) -> None:
        """Forget a pairing."""
        with self._lock:
            if self._options.pop(id(options), None) is not None:
                self._primaries[primary] -= 1
                if not self._primaries[primary]:
                    del self._primaries[primary]


pairings = Registry()

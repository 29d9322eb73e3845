"""PairBus: send, even when your broker is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pairbus.errors import (
        AlreadyPairedError,
        ClientClosedError,
        EntityGoneError,
        InvalidParkedPropertyError,
        MessageTooLargeForBacklogError,
        NamespaceNameUnknownError,
        NoBacklogQueuesError,
        NotPairedError,
        PairbusError,
        PairingError,
        PartnerClosedError,
        SameNamespaceError,
        ScheduledMessageGoneError,
        UsageError,
    )
    from pairbus.pairing.events import Event
    from pairbus.pairing.health import Health
    from pairbus.pairing.options import SendAvailabilityOptions
    from pairbus.pairing.outcome import outcome_of
    from pairbus.syphon.client import PairedServiceBusClient

__all__ = [
    "AlreadyPairedError",
    "ClientClosedError",
    "EntityGoneError",
    "Event",
    "Health",
    "InvalidParkedPropertyError",
    "MessageTooLargeForBacklogError",
    "NamespaceNameUnknownError",
    "NoBacklogQueuesError",
    "NotPairedError",
    "PairbusError",
    "PairedServiceBusClient",
    "PairingError",
    "PartnerClosedError",
    "SameNamespaceError",
    "ScheduledMessageGoneError",
    "SendAvailabilityOptions",
    "UsageError",
    "__version__",
    "outcome_of",
]

# Loaded when asked for: a broker and `pairbus --help` need neither the client nor the official SDK.
_HOMES = {
    "PairedServiceBusClient": "pairbus.syphon.client",
    "SendAvailabilityOptions": "pairbus.pairing.options",
    "Health": "pairbus.pairing.health",
    "Event": "pairbus.pairing.events",
    "outcome_of": "pairbus.pairing.outcome",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'pairbus' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_HOMES.get(name, "pairbus.errors")), name)

"""PairBus: send, even when your broker is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

# First of all: it decides whether the modules that are loaded next are the compiled ones.
import pairbus.form as _form  # noqa: F401

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pairbus.errors import (
        AlreadyPairedError,
        InvalidParkedPropertyError,
        NamespaceNameUnknownError,
        NotPairedError,
        OtherPrimaryError,
        PairbusError,
        PairingError,
        SameNamespaceError,
        SpoolError,
        UsageError,
        WrongTypeError,
    )
    from pairbus.pairing.client.sync import PairedSender, PairedServiceBusClient
    from pairbus.pairing.errors import (
        BatchTooLargeError,
        CancelInDoubtError,
        ClientClosedError,
        EntityGoneError,
        InvalidMessageError,
        MessageTooLargeForBacklogError,
        NoBacklogQueuesError,
        NoListenRightError,
        PartnerClosedError,
        ScheduledMessageGoneError,
        SendAvailabilityError,
        SessionFencedError,
        SpoolRefusedError,
    )
    from pairbus.pairing.events import Event, Kind, Listener
    from pairbus.pairing.options import SendAvailabilityOptions, Trigger
    from pairbus.pairing.outcome import outcome_of
    from pairbus.pairing.rules.health import EntityReport, Health
    from pairbus.pairing.scheduled import ParkedSchedule
    from pairbus.pairing.statistics import Statistics

__all__ = [
    "AlreadyPairedError",
    "BatchTooLargeError",
    "CancelInDoubtError",
    "ClientClosedError",
    "EntityGoneError",
    "EntityReport",
    "Event",
    "Health",
    "InvalidMessageError",
    "InvalidParkedPropertyError",
    "Kind",
    "Listener",
    "MessageTooLargeForBacklogError",
    "NamespaceNameUnknownError",
    "NoBacklogQueuesError",
    "NoListenRightError",
    "NotPairedError",
    "OtherPrimaryError",
    "PairbusError",
    "PairedSender",
    "PairedServiceBusClient",
    "PairingError",
    "ParkedSchedule",
    "PartnerClosedError",
    "SameNamespaceError",
    "ScheduledMessageGoneError",
    "SendAvailabilityError",
    "SendAvailabilityOptions",
    "SessionFencedError",
    "SpoolError",
    "SpoolRefusedError",
    "Statistics",
    "Trigger",
    "UsageError",
    "WrongTypeError",
    "__version__",
    "outcome_of",
]

# Loaded when asked for: a broker and `pairbus --help` need neither the client nor the official SDK.
_MODULES = {
    "PairedServiceBusClient": "pairbus.pairing.client.sync",
    "PairedSender": "pairbus.pairing.client.sync",
    "SendAvailabilityOptions": "pairbus.pairing.options",
    "Trigger": "pairbus.pairing.options",
    "EntityReport": "pairbus.pairing.rules.health",
    "Health": "pairbus.pairing.rules.health",
    "Event": "pairbus.pairing.events",
    "Kind": "pairbus.pairing.events",
    "Listener": "pairbus.pairing.events",
    "ParkedSchedule": "pairbus.pairing.scheduled",
    "SendAvailabilityError": "pairbus.pairing.errors",
    "Statistics": "pairbus.pairing.statistics",
    "outcome_of": "pairbus.pairing.outcome",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'pairbus' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_MODULES.get(name, "pairbus.errors")), name)

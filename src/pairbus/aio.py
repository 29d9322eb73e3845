"""The asynchronous side of ``pairbus``: the same names, with the client and sender around ``azure.servicebus.aio``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pairbus
from pairbus.pairing.client.aio import PairedSender, PairedServiceBusClient

if TYPE_CHECKING:
    from pairbus import (
        AlreadyPairedError,
        BatchTooLargeError,
        CancelInDoubtError,
        ClientClosedError,
        EntityGoneError,
        EntityReport,
        Event,
        Health,
        InvalidMessageError,
        InvalidParkedPropertyError,
        Kind,
        Listener,
        MessageTooLargeForBacklogError,
        NamespaceNameUnknownError,
        NoBacklogQueuesError,
        NoListenRightError,
        NotPairedError,
        OtherPrimaryError,
        PairbusError,
        PairingError,
        ParkedSchedule,
        PartnerClosedError,
        SameNamespaceError,
        ScheduledMessageGoneError,
        SendAvailabilityError,
        SendAvailabilityOptions,
        SessionFencedError,
        SpoolError,
        SpoolRefusedError,
        Statistics,
        Trigger,
        UsageError,
        WrongTypeError,
        __version__,
        outcome_of,
    )

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


def __getattr__(name: str) -> object:
    return getattr(pairbus, name)

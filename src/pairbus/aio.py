"""The asynchronous twin of ``pairbus``: the same names, around ``azure.servicebus.aio``."""

from __future__ import annotations

from pairbus.drain.client_aio import PairedServiceBusClient
from pairbus.pairing._async.sender import PairedSender
from pairbus.pairing.options import SendAvailabilityOptions

__all__ = ["PairedSender", "PairedServiceBusClient", "SendAvailabilityOptions"]

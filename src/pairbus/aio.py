"""The asynchronous twin of ``pairbus``: the same names, around ``azure.servicebus.aio``."""

from __future__ import annotations

from pairbus.pairing._async.sender import PairedSender
from pairbus.pairing.options import SendAvailabilityOptions
from pairbus.syphon.client_aio import PairedServiceBusClient

__all__ = ["PairedSender", "PairedServiceBusClient", "SendAvailabilityOptions"]

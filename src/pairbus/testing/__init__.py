"""The public test kit: a broker in one line, a pair, faults on demand and a clock that obeys.

with Namespace("contoso", queues=["orders"]) as namespace:
    client = namespace.client()             # the official ServiceBusClient

with Pair(queues=["orders"]) as pair:       # two processes, so that one of them can die
    pair.primary.kill()
"""

from __future__ import annotations

from pairbus.testing.clock import VirtualClock
from pairbus.testing.entities import Queue, Subscription, Topic
from pairbus.testing.faults import FaultSwitchboard
from pairbus.testing.namespace import Namespace
from pairbus.testing.pair import Pair

__all__ = ["FaultSwitchboard", "Namespace", "Pair", "Queue", "Subscription", "Topic", "VirtualClock"]

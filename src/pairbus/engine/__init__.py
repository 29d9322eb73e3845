"""What a broker means: queues, topics, locks, settlement, sessions, rules, schedules. No wire protocol, no I/O, no clock.

``namespace.Namespace`` is the root. It needs a log and an outbox (``ports``) and writes facts (``records``).
The gateway works with ``entity``, ``queues.queue``, ``queues.browse``, ``sessions.operations`` and ``rules``;
the storage room needs ``records`` only. Everything else here is private to the room.
"""

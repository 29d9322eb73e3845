"""The paired client: what it does, written once as coroutines over ``pairing.runtime``.

``client`` and ``sender`` hold the logic, ``watch`` the pings, ``setup`` and ``management`` the backlog queues, ``spooling`` the spool, ``state`` what
all senders of a client share. ``aio`` and ``sync`` are the public classes; other rooms take them from ``pairbus``.
"""

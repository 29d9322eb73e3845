"""The paired client: what it does, written once as coroutines over ``pairing.runtime``.

``client`` holds the two namespaces, ``sending`` the way of a send, ``watch`` the pings, ``backlog`` the backlog queues, ``spooling`` the spool,
``state`` what all senders of a client share. ``aio`` and ``sync`` are the public classes; other rooms take them from ``pairbus``.
"""

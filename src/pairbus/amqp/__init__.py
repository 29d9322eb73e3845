"""AMQP 1.0 without I/O: bytes in, events to a ``Handler``, bytes out.

``transport`` has connections, sessions and links, ``message`` the sections of a message. Beside them stands what both use: the type
system (``types``, ``encode``, ``decode``, ``composite``), delivery ``states`` and error ``conditions``.
"""

"""AMQP 1.0 without I/O: bytes in, events to a ``Handler``, bytes out.

``connection.Connection`` is the protocol machine. ``performatives`` and ``states`` are its vocabulary, ``types``, ``encode`` and
``decode`` the type system, ``message`` the layout of messages. ``fast`` has the readers and writers for what happens per message.
"""

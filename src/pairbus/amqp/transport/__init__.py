"""Part 2 of AMQP 1.0: connections, sessions, links and frames, with the SASL handshake before them.

``connection.Connection`` is the machine that others drive; it calls a ``handler.Handler``. ``fast`` has the readers and writers for what
happens once per message.
"""

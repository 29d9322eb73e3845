"""AMQP 1.0 without I/O: bytes in, calls out, bytes out. Knows no queues."""

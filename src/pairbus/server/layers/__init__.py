"""The protocols between a socket and AMQP, each without I/O: detection, TLS, HTTP and WebSocket."""

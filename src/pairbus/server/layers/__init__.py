"""The layers between a socket and AMQP, each without I/O: protocol detection, TLS, HTTP, WebSocket."""

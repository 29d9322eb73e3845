"""The broker's only room that waits: sockets, TLS, HTTP, the commit thread, the clock, options."""

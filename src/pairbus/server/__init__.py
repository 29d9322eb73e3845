"""The process around the broker: sockets, the event loop, commits, logs and configuration. The broker itself does no I/O.

``main.run`` serves until a signal comes, ``server.Server`` is the same without signals, for tests and for several brokers in one
process. ``assemble`` opens the store and builds the broker. ``offline`` works on the data of a broker that does not run.
"""

"""Joins the AMQP protocol and HTTP management to the engine. No I/O, no clock.

``broker.Broker`` is the root: the server feeds it bytes, HTTP requests and time, and takes bytes out after the commit.
Messages in: ``incoming``. Messages out: ``outgoing``. How a delivery ends: ``settlement``. Sub-packages: ``rights`` (tokens and access rules), ``management``
(the ``$management`` node over AMQP), ``atom`` (the HTTP management API), ``telemetry`` (usage, counters, metrics).
"""

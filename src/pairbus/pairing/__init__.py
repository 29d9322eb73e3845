"""Two namespaces as one client that goes on sending when its primary namespace does not answer.

Users take everything from ``pairbus`` and ``pairbus.aio``. Inside:

- ``options``, ``errors``, ``events``, ``statistics``, ``outcome``, ``scheduled``: the values that users see
- ``naming``, ``parking``: names of backlog queues, and messages in the form in which they wait there
- ``rules``: every decision, without clock or I/O
- ``client``: what a paired client does, written once as coroutines
- ``runtime``: how it waits, on asyncio and on threads
- ``clock``, ``journal``: the two clocks, and the file of events that ``PAIRBUS_JOURNAL`` names; ``journal_states``: what
  that file says of entities now

Other rooms may use all but the inside of ``client`` and ``runtime``: of those only the public classes (``client.sync``,
``client.aio``), and for the drain ``client.backlog.management``, ``client.sending.limits`` and ``runtime.asyncio_runtime``.
"""

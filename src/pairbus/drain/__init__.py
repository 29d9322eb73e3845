"""The drain: delivers the backlog in the secondary to the primary (``pairbus syphon``).

``rules`` decide, without waiting. The shell that performs the I/O: ``shell``, ``senders`` and ``lookups``, over ``ports``;
``azure_ports`` are the ports on the SDK, ``in_doubt`` keeps sends in doubt.

Others use:

- ``hosting``: a drain on two clients, in a task or in a thread
- ``backlog``: list, inspect, redrive, purge and drain backlog queues
- ``shell.Drain`` with ``ports`` and ``rules.plan.DrainPlan``: a drain on ports of their own (the Spark task, the simulation)
- ``azure_ports.AzureOutlet``: sends batches to any entity (the Spark sink)
"""

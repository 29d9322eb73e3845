"""How a paired client waits: the port (``ports``), and its two implementations, on asyncio and on threads.

``pairing.client`` is written once, as coroutines over this port. On asyncio they run as they are. On threads every method
of the port blocks and never suspends, so that ``thread_runtime.run`` takes a coroutine to its end in one step, without
an event loop. The simulation runs the asyncio side on virtual time.
"""

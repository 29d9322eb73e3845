"""Keeps the records of a namespace durably and gives them back in order. It understands nothing more about them.

``ports.Store`` is what the others use. ``log.store.LogStore`` keeps records on disk, ``memory.MemoryStore`` in memory, for tests.
``tools`` are for operators.
"""

"""The synchronous twin. Written by ``tools/unasync.py`` from ``_async``, but for ``runtime``."""

"""The asynchronous twin, written by hand. ``tools/unasync.py`` writes ``_sync`` from it."""

"""The store on disk: a log of segments. ``store`` explains the whole; ``frame``, ``segment`` and ``mark`` define the format."""

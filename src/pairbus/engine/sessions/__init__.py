"""Message sessions: ``table`` holds them, ``operations`` is what receivers do with them, ``order`` finds their messages."""

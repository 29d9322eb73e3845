"""The embedded store: a log of segments, committed frame by frame and recovered after a crash."""

"""`make bench-loads`: other loads than one plain queue, each beside the broker's own plain queue in the same run."""

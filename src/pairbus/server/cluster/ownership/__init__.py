"""Who owns the shard: the lease, and a takeover."""

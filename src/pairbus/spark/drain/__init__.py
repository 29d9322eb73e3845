"""The Spark drain: the driver plans slices, tasks drain backlog queues, a ledger says what became of each message."""

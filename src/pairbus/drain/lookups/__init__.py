"""What a drain finds out by looking: older and deferred messages, messages in doubt at their destination, and further backlog queues."""

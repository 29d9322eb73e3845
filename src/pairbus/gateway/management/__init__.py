"""Management operations over AMQP: the `$management` node of an entity."""

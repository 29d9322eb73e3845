"""The log of a shard as a table: appending at the next number is the fence against a second owner.

``ports`` says what such a table must do; ``storage.postgres`` does it with PostgreSQL. A *shard* is one log, one lease, one epoch and
one engine. Today a namespace is one shard.
"""

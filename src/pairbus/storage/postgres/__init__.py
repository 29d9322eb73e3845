"""The log of a shard in PostgreSQL: the parts of ``storage.table.ports``, by psycopg.

``opening.open_database`` is where others begin; it loads psycopg, which comes with ``pairbus[postgres]``. No other package of ours
imports psycopg or knows SQL.
"""

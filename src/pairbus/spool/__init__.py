"""Messages in a directory of this machine, for the time in which no namespace takes them.

- ``file``: the tables of a spool, which is an SQLite file, and how they are read
- ``store``: one spool that a client has open: append in groups, read oldest first, remove
- ``directory``: the directory of an application: one spool for each client that runs, and those that others left behind
- ``reading``: spools as a person and the reports see them, also while a program uses them

The room knows bytes, entity names and times. What they mean is decided in ``pairing``, which is above it.
"""

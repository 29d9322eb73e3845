"""A node of a cluster: several processes serve one namespace from one database, one of them at a time.

``ownership.lease`` decides, without waiting: which call to the database comes next, and until when this node may write. ``ownership.keeper``
performs the calls in a thread, and ``ownership.reporter`` in another what this node reports. ``node`` listens, builds the server while this node is the owner, and otherwise relays connections to the
owner (``relaying``; its ``pipes`` pass their bytes on, in a thread).
"""

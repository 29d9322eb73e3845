"""A node of a cluster: several processes serve one namespace from one database, one of them at a time.

``lease`` decides, without waiting: which call to the database comes next, and until when this node may write. ``keeper`` performs the
calls in a thread. ``node`` listens, builds the server while this node is the owner, and otherwise relays connections to the owner
(``relay``; ``pipes`` passes their bytes on, in a thread).
"""

"""Everything between a listening address and the broker: accepting, one connection per socket, and who gets how much of the loop.

``registry`` is what the rest of the server uses.
"""

"""What a paired client decides, without clock or I/O: health of an entity, next step of a send, rotation, pings, closing."""

"""The HTTP management API that the official administration clients use (Atom XML)."""

"""The syphon: brings the backlog home."""

"""The certificate: what became of every accepted message."""

"""Messages as encoded bytes."""

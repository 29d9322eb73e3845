"""What a server writes beside its store: log lines, audit, usage, and the audit of messages."""

"""What a server writes beside its store: its own log, the audit of management, the audit of messages, and usage."""

"""What a drain decides: which message is sent, waits, or is dead-lettered. No clock, no I/O."""

"""What the broker counts and reports: billed operations, metrics, and the rows of the audit log."""

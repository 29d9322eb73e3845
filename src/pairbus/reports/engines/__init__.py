"""Compute the bill and the certificate from log files: `arrow` in this process, `spark` on Spark.

Both engines read by the rules of `usage_log` and `audit_log` and give the same values for the same files; one test suite holds them to it.
`base` says what an engine can do, and which one a report takes.
"""

"""Compute the bill and the certificate from log files."""

"""Brokers on this machine: start one in a process or a thread, stop it, kill it, and manage it over HTTP."""

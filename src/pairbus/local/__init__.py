"""Brokers as processes on this machine: start, watch and stop one or a pair, and ask their management API."""

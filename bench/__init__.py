"""Benchmarks, each beside a baseline in the same run: `make bench-broker`, `make bench-settle`."""

"""Benchmarks that need more than the package has: C, peers, Spark. `pairbus bench` and `make bench` run all of them."""

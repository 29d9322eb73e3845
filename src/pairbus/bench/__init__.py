"""Measurements that anybody can repeat, each beside a baseline in the same run: read the ratios."""

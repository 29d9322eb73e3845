"""Subscription rules: filters and actions (``sql``), one subscription's rules, a topic's index of all of them, their JSON."""

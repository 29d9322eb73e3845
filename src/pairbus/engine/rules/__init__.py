"""Subscription rules: which messages a subscription gets, and what an action changes in its copy."""

"""Commands that calculate costs and prove deliveries."""

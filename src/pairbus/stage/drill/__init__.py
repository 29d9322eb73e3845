"""The drill: a game day on the user's own pair, with an outage that ends by itself and a report card."""

"""The drill: a planned outage of the user's own pair, which ends by itself, and a report card."""

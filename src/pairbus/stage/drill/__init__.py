"""A game day on a pair: scheduled, bounded, self-ending, with a report card."""

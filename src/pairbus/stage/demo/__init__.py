"""The whole story, live: sends, an outage, failover, pings, the way home, the bill, the proof."""

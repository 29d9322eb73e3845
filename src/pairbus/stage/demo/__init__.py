"""The demo: a pair of its own, four entities under load, the primary killed and restarted, then the bill and the proof."""

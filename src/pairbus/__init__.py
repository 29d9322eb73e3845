"""PairBus: send, even when your broker is gone."""

__version__ = "0.1.0"
